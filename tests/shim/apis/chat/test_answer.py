"""The response and the chunks of chat completions."""

import math

import pytest

from services.shim.apis.chat.answer import ChatAnswer
from tests.shim.apis.answers import logprobs, make
from tests.shim.harness import Shim


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


async def test_a_full_chat_completion(shim: Shim) -> None:
    """What vLLM sends as null is there: clients read these keys as attributes."""
    generation, (handle,) = shim.start(1)
    answer = make(ChatAnswer, generation)
    shim.event(handle, 0, [7, 8], "Hello")
    shim.end(handle, content="!", prompt_tokens=5, output_tokens=2, cached_tokens=4)
    found = await answer.full_response()
    assert found.pop("created") > 0
    nulls = dict.fromkeys(["refusal", "annotations", "audio", "function_call", "reasoning"])
    assert found == {
        "id": "id-1",
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": "numerics",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", **nulls},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": None,
        },
        **dict.fromkeys(["service_tier", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params"]),
    }


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
    shim.event(handle, 1, [8])
    assert await answer.next_chunks() == [], "a token with held-back text makes no chunk"
    shim.end(handle)
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert await answer.next_chunks() == [{"choices": [last]}]
    assert await answer.next_chunks() is None


async def test_every_choice_has_a_role_first(shim: Shim) -> None:
    generation, _ = shim.start(3)
    chunks = make(ChatAnswer, generation, response_role="bot").first_chunks()
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 2]
    assert {chunk["choices"][0]["delta"]["role"] for chunk in chunks} == {"bot"}


async def test_prompt_token_ids(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.accept(handle, [1, 2])
    shim.event(handle, 0, [7], "a")
    shim.end(handle)
    stream = make(ChatAnswer, generation, token_ids=True).first_chunks()
    assert stream[0]["prompt_token_ids"] == [1, 2]
    full = await make(ChatAnswer, generation, token_ids=True).full_response()
    assert full["prompt_token_ids"] == [1, 2] and full["choices"][0]["token_ids"] == [7]


async def test_logprobs(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "é", logprobs=[logprobs("é", -0.5, ("é", -0.5), ("x", -math.inf))])
    shim.end(handle)
    (choice,) = (await make(ChatAnswer, generation).full_response())["choices"]
    sampled = {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]}
    other = {"token": "x", "logprob": -9999.0, "bytes": [0x78]}
    assert choice["logprobs"] == {"content": [{**sampled, "top_logprobs": [sampled, other]}]}


async def test_tokens_as_ids(shim: Shim) -> None:
    generation, (handle,) = shim.start(1)
    shim.event(handle, 0, [7], "a", logprobs=[logprobs("a", -0.5, ("b", -1.0))])
    shim.end(handle)
    (choice,) = (await make(ChatAnswer, generation, tokens_as_token_ids=True).full_response())["choices"]
    (entry,) = choice["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:97", [97])
    assert [top["token"] for top in entry["top_logprobs"]] == ["token_id:98"]
    assert choice["message"]["content"] == "a"
