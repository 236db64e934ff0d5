"""The response and the chunks of completions."""

import math

import pytest

from services.rpc.generated import common_pb2 as pb
from services.shim.apis.completions.answer import CompletionAnswer
from tests.shim.apis.answers import full_of, logprobs, make
from tests.shim.harness import Shim


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


async def test_a_full_completion(shim: Shim) -> None:
    """What vLLM sends as null is there: clients read these keys as attributes."""
    generation, (handle,) = shim.start(1)
    answer = make(CompletionAnswer, generation)
    shim.event(handle, 0, [7], "Hello")
    shim.end(handle, pb.FINISH_REASON_LENGTH)
    found = await full_of(answer)
    assert found["object"] == "text_completion"
    assert (found["service_tier"], found["kv_transfer_params"]) == (None, None)
    (choice,) = found["choices"]
    nulls = dict.fromkeys(["logprobs", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids"])
    assert choice == {"index": 0, "text": "Hello", "finish_reason": "length", **nulls}


async def test_the_chunks_of_a_stream(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    answer = make(CompletionAnswer, generation)
    assert answer.head()["object"] == "text_completion" and answer.first_chunks() == []
    shim.event(handle, 0, [7], "He")
    assert await answer.next_chunks() == [
        {"choices": [{"index": 0, "text": "He", "logprobs": None, "finish_reason": None}]}
    ]
    shim.end(handle, content="y")
    last = {"index": 0, "text": "y", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert await answer.next_chunks() == [{"choices": [last]}]
    assert await answer.next_chunks() is None


async def test_prompt_token_ids_are_per_choice(shim: Shim) -> None:
    """In a stream, only the first chunk of a choice has them."""
    generation, handles = shim.start(2, 2)
    shim.accept(handles[0], [1])
    shim.accept(handles[2], [2])
    answer = make(CompletionAnswer, generation, token_ids=True)
    assert answer.first_chunks() == []
    for index, handle in enumerate(handles):
        shim.event(handle, 0, [7], "a")
        (chunk,) = await answer.next_chunks() or []
        assert chunk["choices"][0]["prompt_token_ids"] == [1 + index // 2]
        shim.event(handle, 1, [8], "b")
        (chunk,) = await answer.next_chunks() or []
        assert "prompt_token_ids" not in chunk["choices"][0]


async def test_logprobs(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    entries = [logprobs("a", -0.5, ("x", -0.25)), logprobs("b", -1.0, ("y", -math.inf), offset=1)]
    shim.event(handle, 0, [7, 8], "ab", logprobs=entries)
    shim.end(handle)
    (choice,) = (await full_of(make(CompletionAnswer, generation)))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"x": -0.25, "a": -0.5}, {"y": -9999.0, "b": -1.0}],
        "text_offset": [0, 1],
    }


async def test_tokens_as_ids(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "a", logprobs=[logprobs("a", -0.5, ("b", -1.0))])
    shim.end(handle)
    (choice,) = (await full_of(make(CompletionAnswer, generation, tokens_as_token_ids=True)))["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:97"]
    assert choice["logprobs"]["top_logprobs"] == [{"token_id:98": -1.0, "token_id:97": -0.5}]
    assert choice["text"] == "a"
