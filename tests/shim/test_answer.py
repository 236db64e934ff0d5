"""answer: OpenAI's JSON of chat and completions, the same whether streamed or not."""

from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.answer import Answer, ChatAnswer, CompletionAnswer, Json
from services.shim.generation import Generation
from tests.shim.harness import Shim

LENGTH = pb.FINISH_REASON_LENGTH


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


def make(kind: type[Answer], generation: Generation, *, with_token_ids: bool = False) -> Answer:
    return kind("id-1", "fake", "numerics", generation, with_token_ids)


def logprobs(token: str, value: float, *top: tuple[str, float], offset: int = 0) -> text_pb2.TokenLogprobs:
    def one(token: str, value: float) -> text_pb2.TokenLogprob:
        return text_pb2.TokenLogprob(token=token, token_bytes=token.encode(), logprob=value)

    return text_pb2.TokenLogprobs(sampled=one(token, value), top=[one(*other) for other in top], text_offset=offset)


async def chunks_of(answer: Answer) -> list[Json]:
    chunks = answer.first_chunks()
    while (more := await answer.next_chunks()) is not None:
        chunks += more
    return chunks


async def test_a_full_chat_completion(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation)
    shim.event(handle, 0, [7, 8], "Hello")
    shim.end(handle, content="!", prompt_tokens=5, output_tokens=2, cached_tokens=4)
    found = await answer.full_response()
    assert found.pop("created") > 0
    assert found == {
        "id": "id-1",
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": "numerics",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!"},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


async def test_a_full_completion(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    answer = make(CompletionAnswer, generation)
    shim.event(handle, 0, [7], "Hello")
    shim.end(handle, LENGTH)
    found = await answer.full_response()
    assert found["object"] == "text_completion"
    (choice,) = found["choices"]
    assert choice == {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length", "stop_reason": None}


async def test_the_chunks_of_a_chat_stream(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation)
    assert answer.head()["object"] == "chat.completion.chunk"
    role = {"role": "assistant", "content": ""}
    assert answer.first_chunks() == [
        {"choices": [{"index": 0, "delta": role, "logprobs": None, "finish_reason": None}]}
    ]
    shim.event(handle, 0, [7], "He")
    assert await answer.next_chunks() == [
        {"choices": [{"index": 0, "delta": {"content": "He"}, "logprobs": None, "finish_reason": None}]}
    ]
    shim.event(handle, 1, [8], "")
    assert await answer.next_chunks() == [], "a token with held-back text makes no chunk"
    shim.end(handle)
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert await answer.next_chunks() == [{"choices": [last]}]
    assert await answer.next_chunks() is None


@pytest.mark.parametrize(("kind", "text"), [(ChatAnswer, "message"), (CompletionAnswer, "text")])
async def test_a_stream_and_a_full_response_say_the_same(shim: Shim, kind: type[Answer], text: str) -> None:
    """Two choices of two prompts each, read after every message."""
    answers = []
    for streamed in (True, False):
        generation, handles = shim.start(2, 2) if kind is CompletionAnswer else shim.start(4)
        answer = make(kind, generation, with_token_ids=True)
        found: list[Json] = [*answer.first_chunks()] if streamed else []
        for step in range(3):
            for number, handle in enumerate(handles):
                shim.event(handle, step, [10 * number + step], f"{number}-{step} ", logprobs=[logprobs("t", -step)])
                if streamed:
                    found += await answer.next_chunks() or []
        for handle in handles:
            shim.end(handle, prompt_tokens=3, output_tokens=3)
        if streamed:
            while (more := await answer.next_chunks()) is not None:
                found += more
            answers.append([merged(found, index) for index in range(4)])
        else:
            full = await answer.full_response()
            answers.append([merged([{"choices": [choice]} for choice in full["choices"]], index) for index in range(4)])
        assert answer.usage()["completion_tokens"] == 12
        assert answer.usage()["prompt_tokens"] == 3 * len(generation.calls), "a prompt counts once"
    assert answers[0] == answers[1]
    assert answers[0][2][0] == "2-0 2-1 2-2 " and answers[0][2][1] == [20, 21, 22]


def merged(chunks: list[Json], index: int) -> tuple[str, list[int], list[float], Any]:
    """Text, token ids, logprobs and finish reason of one choice."""
    content, token_ids, values, reason = "", [], [], None
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        message = choice.get("delta") or choice.get("message") or {}
        content += choice.get("text", "") + message.get("content", "")
        token_ids += choice.get("token_ids", [])
        if (found := choice["logprobs"]) is not None:
            values += found.get("token_logprobs") or [entry["logprob"] for entry in found["content"]]
        reason = choice["finish_reason"]
    return content, token_ids, values, reason


async def test_prompt_token_ids_of_a_chat(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.accept(handle, [1, 2])
    shim.event(handle, 0, [7], "a")
    shim.end(handle)
    stream = make(ChatAnswer, generation, with_token_ids=True).first_chunks()
    assert stream[0]["prompt_token_ids"] == [1, 2]
    full = await make(ChatAnswer, generation, with_token_ids=True).full_response()
    assert full["prompt_token_ids"] == [1, 2] and full["choices"][0]["token_ids"] == [7]


async def test_prompt_token_ids_of_completions_are_per_choice(shim: Shim) -> None:
    """In a stream, only the first chunk of a choice has them."""
    generation, handles = shim.start(2, 2)
    shim.accept(handles[0], [1])
    shim.accept(handles[2], [2])
    answer = make(CompletionAnswer, generation, with_token_ids=True)
    assert answer.first_chunks() == []
    for index, handle in enumerate(handles):
        shim.event(handle, 0, [7], "a")
        (chunk,) = await answer.next_chunks() or []
        assert chunk["choices"][0]["prompt_token_ids"] == [1 + index // 2]
        shim.event(handle, 1, [8], "b")
        (chunk,) = await answer.next_chunks() or []
        assert "prompt_token_ids" not in chunk["choices"][0]


async def test_chat_logprobs(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "é", logprobs=[logprobs("é", -0.5, ("é", -0.5), ("x", -2.0))])
    shim.end(handle)
    (choice,) = (await make(ChatAnswer, generation).full_response())["choices"]
    sampled = {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}
    other = {"token": "x", "logprob": -2.0, "bytes": [0x78]}
    assert choice["logprobs"] == {"content": [{**sampled, "top_logprobs": [sampled, other]}]}


async def test_completion_logprobs(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    entries = [logprobs("a", -0.5, ("x", -0.25)), logprobs("b", -1.0, offset=1)]
    shim.event(handle, 0, [7, 8], "ab", logprobs=entries)
    shim.end(handle)
    (choice,) = (await make(CompletionAnswer, generation).full_response())["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"x": -0.25, "a": -0.5}, {"b": -1.0}],
        "text_offset": [0, 1],
    }


@pytest.mark.parametrize("stop", [{"stop_string": "END"}, {"stop_token_id": 9}])
async def test_the_stop_reason(shim: Shim, stop: dict[str, Any]) -> None:
    generation, (handle,) = shim.start(1)
    shim.end(handle, **stop)
    (choice,) = (await make(CompletionAnswer, generation).full_response())["choices"]
    assert [choice["stop_reason"]] == list(stop.values())


async def test_the_error_of_one_choice_is_that_of_the_request(shim: Shim) -> None:
    for streamed in (True, False):
        generation, handles = shim.start(2)
        answer = make(ChatAnswer, generation)
        shim.event(handles[0], 0, [7], "a")
        shim.fail(handles[1], TandemError("INTERNAL", "the worker is gone"))
        with pytest.raises(TandemError, match="the worker is gone"):
            await (chunks_of(answer) if streamed else answer.full_response())
