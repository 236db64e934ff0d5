"""The chunks of a stream add up to the whole answer."""

import pytest

from tests.e2e.api import CHAT, GREEDY, MODEL, SEEDED, TEXT, Json, ask, both, choices_of, fold, stream
from tests.e2e.harness import Server


@both
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stop": ["e", "zz"]}, {"skip_special_tokens": False}], ids=str)
def test_a_stream_adds_up_to_the_whole_answer(server: Server, path: str, sampling: Json, more: Json) -> None:
    wanted: Json = {"logprobs": True, "top_logprobs": 3} if path == CHAT else {"logprobs": 3}
    if "n" in more:
        wanted = {}  # the last bits of logprobs depend on what else is in the batch
    body = {**sampling, **wanted, **more, "max_tokens": 48}
    whole = ask(server, path, **body)
    chunks = stream(server, path, **body, stream_options={"include_usage": True})
    assert fold(chunks[:-1]) == choices_of(whole)
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == sum(len(one["token_ids"]) for one in choices_of(whole))


@both
def test_every_chunk_has_the_id_and_the_model(server: Server, path: str) -> None:
    whole, chunks = ask(server, path), stream(server, path, n=2)
    names = ("id", "created", "model", "system_fingerprint", "object")
    (head,) = {tuple(chunk[name] for name in names) for chunk in chunks}
    assert head[2:4] == (MODEL, whole["system_fingerprint"])
    objects = {CHAT: ("chat.completion", "chat.completion.chunk"), TEXT: ("text_completion", "text_completion")}
    assert (whole["object"], head[4]) == objects[path]
    assert head[0].startswith({CHAT: "chatcmpl-", TEXT: "cmpl-"}[path])


def test_a_chat_stream_begins_with_the_role(server: Server) -> None:
    first, second, *others = stream(server, CHAT, n=2)
    for index, chunk in enumerate((first, second)):
        assert (
            chunk["choices"][0] | {"delta": {"role": "assistant", "content": ""}, "index": index} == chunk["choices"][0]
        )
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in others)


@both
def test_usage_comes_when_it_is_asked_for(server: Server, path: str) -> None:
    *chunks, last = stream(server, path, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 24
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    for options in (None, {"include_usage": False}):
        assert all("usage" not in chunk for chunk in stream(server, path, stream_options=options))
