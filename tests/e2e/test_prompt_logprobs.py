"""`prompt_logprobs` and `echo` of a real server: equal to transformers, cached, chunked, streamed, and after kills."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.e2e.api import CHAT, INPUT, MAX_LEN, TEXT, Json, error_of, fold, stream, vocabulary
from tests.e2e.harness import ALL_READY, Server, children_of, role_of, wait_for

PROMPT = "How far is it from Köln to 東京, by the way?\nAnd back? 🙂"
GREEDY: Json = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}
LONG = [token_id * 29 % DEMO_VOCAB_SIZE for token_id in range(5, 4005)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), max_position_embeddings=MAX_LEN)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    """Steps have few tokens, so that prompts are computed in chunks."""
    flags = ("--dtype=float32", "--max-num-batched-tokens=32", "--max-num-seqs=16", "--tokenizer-replicas=2")
    with Server(str(path), *flags) as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


def post(server: Server, path: str, **body: Any) -> Json:
    response = server.post(path, {**INPUT[path], **GREEDY, "return_token_ids": True, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


def scores_of(answer: Json) -> tuple[list[int], list[Json | None]]:
    """Returns the prompt's ids and logprobs, wherever the API has them."""
    holder = answer if "prompt_logprobs" in answer else answer["choices"][0]
    return holder["prompt_token_ids"], holder["prompt_logprobs"]


def expected(path: Path, ids: list[int]) -> torch.Tensor:
    """Returns transformers' logprobs of each token but the first: [tokens - 1, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], dim=-1)


@pytest.mark.parametrize("api", [CHAT, TEXT], ids=["chat", "text"])
def test_prompt_logprobs_equal_transformers_also_of_a_cached_prompt(server: Server, path: Path, api: str) -> None:
    ids, first = scores_of(post(server, api, prompt_logprobs=3))
    assert first[0] is None and len(first) == len(ids)
    reference = expected(path, ids)
    for token_id, found, row in zip(ids[1:], first[1:], reference, strict=True):
        assert found is not None and next(iter(found)) == str(token_id)
        for name, entry in found.items():
            assert abs(entry["logprob"] - float(row[int(name)])) < 1e-4
            token = vocabulary().token_bytes(int(name)).decode(errors="replace")
            assert entry["decoded_token"] == token and entry["rank"] >= 1
        top = {int(name) for name, entry in found.items() if entry["rank"] <= 3}
        assert top == set(row.topk(3).indices.tolist()) and len(found) in (3, 4)
    again = post(server, api, prompt_logprobs=3)
    assert scores_of(again) == (ids, first)
    assert again["choices"] == post(server, api, prompt_logprobs=3)["choices"]


def test_every_choice_and_every_prompt_has_them(server: Server) -> None:
    one, other = post(server, TEXT, prompt_logprobs=0, n=2, prompt=["Good day", "How far is it?"]), "How far is it?"
    found = [choice["prompt_logprobs"] for choice in one["choices"]]
    assert found[0] == found[1] != found[2] == found[3]
    assert found[2] == post(server, TEXT, prompt_logprobs=0, prompt=other)["choices"][0]["prompt_logprobs"]
    assert all(len(entry) == 1 for entry in found[2][1:])


def test_a_prompt_of_one_token_has_a_null(server: Server) -> None:
    assert scores_of(post(server, TEXT, prompt=[7], prompt_logprobs=2)) == ([7], [None])
    (choice,) = post(server, TEXT, prompt=[72], echo=True, logprobs=1, max_tokens=0)["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None] and choice["logprobs"]["text_offset"] == [0]
    assert choice["logprobs"]["tokens"] == [choice["text"]]


def test_echo_puts_the_prompt_and_its_logprobs_before_the_answer(server: Server) -> None:
    body: Json = {"prompt": PROMPT, "logprobs": 2}
    (plain,), (echoed,) = post(server, TEXT, **body)["choices"], post(server, TEXT, **body, echo=True)["choices"]
    (scored,) = post(server, TEXT, prompt=PROMPT, prompt_logprobs=2)["choices"]
    assert echoed["text"] == PROMPT + plain["text"]
    assert echoed["prompt_logprobs"] is None and scored["logprobs"] is None
    logprobs, count = echoed["logprobs"], len(scored["prompt_token_ids"])
    assert b"".join(map(vocabulary().token_bytes, scored["prompt_token_ids"])).decode() == PROMPT
    for name, column in logprobs.items():
        more = len(PROMPT) if name == "text_offset" else 0
        assert column[count:] == [one + more if more else one for one in plain["logprobs"][name]]
    own = [next(iter(entry.values()))["logprob"] for entry in scored["prompt_logprobs"][1:]]
    assert logprobs["token_logprobs"][:count] == [None, *own]
    assert logprobs["top_logprobs"][0] is None and all(len(top) in (2, 3) for top in logprobs["top_logprobs"][1:])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert "\ufffd" in token or echoed["text"].startswith(token, offset)
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_an_echo_streams(server: Server, n: int, max_tokens: int) -> None:
    body: Json = {"prompt": [PROMPT, PROMPT * 9], "echo": True, "logprobs": 1, "n": n, "max_tokens": max_tokens}
    body |= {"temperature": 1, "seed": 3}
    whole = post(server, TEXT, **body)["choices"]
    streamed = fold(stream(server, TEXT, **body))
    for choice, found in zip(whole, streamed, strict=True):
        assert all(found[name] == choice[name] for name in ("text", "token_ids", "finish_reason", "logprobs"))


def test_an_echo_without_an_answer(server: Server) -> None:
    answer = post(server, TEXT, prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer["choices"]
    assert choice["text"] == PROMPT and choice["finish_reason"] == "length" and choice["token_ids"] == []
    assert answer["usage"]["completion_tokens"] == 0
    (with_answer,) = post(server, TEXT, prompt=PROMPT, echo=True, logprobs=1, max_tokens=1)["choices"]
    for name, column in choice["logprobs"].items():
        assert column == with_answer["logprobs"][name][:-1]


def test_a_chat_echoes_the_message_that_it_continues(server: Server) -> None:
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}]
    body: Json = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    plain, echoed = post(server, CHAT, **body), post(server, CHAT, **body, echo=True)
    said = plain["choices"][0]["message"]["content"]
    assert echoed["choices"][0]["message"]["content"] == "One, two," + said
    assert post(server, CHAT, echo=True)["choices"] == post(server, CHAT)["choices"], "the last message is the user's"


@pytest.mark.parametrize("role", ["worker", "engine", "tokenizer"])
def test_after_a_kill_they_are_the_same(server: Server, role: str) -> None:
    body: Json = {"prompt": LONG, "echo": True, "logprobs": 2, "prompt_logprobs": 2, "cache_salt": role}
    whole = post(server, TEXT, **body)["choices"]
    before = server.stats().num_scheduled_tokens
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, server, TEXT, **body)
        wait_for(lambda: server.stats().num_scheduled_tokens > before + 500, "a part of the prompt is computed")
        assert not answer.done()
        for pid in [pid for pid in children_of(server.process.pid) if role_of(pid) == role]:
            os.kill(pid, signal.SIGKILL)
        assert answer.result()["choices"] == whole
    wait_for(lambda: server.get("/health").status_code == 200 and is_ready(server), "all are back", 60)


def is_ready(server: Server) -> bool:
    return server.post(TEXT, {**INPUT[TEXT], "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("api", [CHAT, TEXT], ids=["chat", "text"])
def test_refusals(server: Server, api: str) -> None:
    body = {**INPUT[api], **GREEDY}
    error = error_of(server.post(api, {**body, "prompt_logprobs": 1, "stream": True}), 400)
    assert error["param"] == "prompt_logprobs" and "stream" in error["message"]
    error = error_of(server.post(api, {**body, "prompt_logprobs": 21}), 400)
    assert error["param"] == "prompt_logprobs" and "less than or equal to 20" in error["message"]
    error = error_of(server.post(api, {**body, "prompt_logprobs": -1}), 400)
    assert error["param"] == "prompt_logprobs" and "--max-logprobs" in error["message"]
    if api == TEXT:
        error = error_of(server.post(api, {**body, "max_tokens": 0}), 400)
        assert error["param"] == "max_tokens" and "without echo" in error["message"]
