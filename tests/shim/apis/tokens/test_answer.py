"""The answers and streams of /inference/v1/generate: ids, logprobs by id, counts, and no text."""

import asyncio
import json

import httpx

from services.rpc.generated import common_pb2 as pb
from tests.shim.apis.answers import logprobs
from tests.shim.apis.tokens.test_schema import post
from tests.shim.harness import Shim


async def test_an_answer(shim: Shim, http: httpx.AsyncClient) -> None:
    answer = post(http, request_id="mine", sampling_params={"n": 2, "logprobs": 1})
    first, second = [choice.handle for choice in (await shim.sent()).submit.choices]
    shim.accept(first, cached_tokens=1)
    shim.event(first, 0, [97, 98], "text that nobody asked for", logprobs=[logprobs("a", -1.0, ("b", -2.0))] * 2)
    shim.end(first, pb.FINISH_REASON_LENGTH, prompt_tokens=2, output_tokens=2, cached_tokens=1)
    shim.event(second, 0, [99], logprobs=[logprobs("c", float("-inf"))])
    shim.end(second, prompt_tokens=2, output_tokens=1, stop_token_id=99)
    found = (await answer).json()
    assert found.keys() == {
        "request_id", "created", "model", "system_fingerprint", "choices", "usage", "prompt_logprobs",
        "kv_transfer_params",
    }  # fmt: skip
    assert (found["request_id"], found["model"]) == ("generate-tokens-mine", "fake")
    assert found["usage"]["completion_tokens"] == 3 and found["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    one, other = found["choices"]
    entry = {"token": "token_id:97", "logprob": -1.0, "bytes": None}
    top = {"token": "token_id:98", "logprob": -2.0, "bytes": None}
    assert one == {
        "index": 0, "logprobs": {"content": [entry | {"top_logprobs": [top]}] * 2}, "routed_experts": None,
        "finish_reason": "length", "stop_reason": None, "token_ids": [97, 98],
    }  # fmt: skip
    assert (other["finish_reason"], other["stop_reason"], other["token_ids"]) == ("stop", 99, [99])
    assert other["logprobs"]["content"][0]["logprob"] == -9999.0


async def test_a_stream(shim: Shim, http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = post(http, stream=True, stream_options=options, sampling_params={"logprobs": 0})
    handle = (await shim.sent()).submit.choices[0].handle
    shim.accept(handle)
    for at, token_id in enumerate((97, 98)):
        shim.event(handle, at, [token_id], logprobs=[logprobs(chr(token_id), -1.0)])
        for _ in range(10):
            await asyncio.sleep(0)
    shim.end(handle, pb.FINISH_REASON_LENGTH, prompt_tokens=2, output_tokens=2)
    response = await answer
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("object" not in chunk and "id" not in chunk for chunk in chunks)
    assert len({chunk["request_id"] for chunk in chunks}) == 1
    *parts, usage = chunks
    ids = [token_id for chunk in parts for token_id in chunk["choices"][0]["token_ids"]]
    assert ids == [97, 98] and parts[-1]["choices"][0]["finish_reason"] == "length"
    assert parts[0]["choices"][0]["logprobs"]["content"][0] == {
        "token": "token_id:97", "logprob": -1.0, "bytes": None, "top_logprobs": []
    }  # fmt: skip
    assert parts[0]["usage"]["completion_tokens"] == 1
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 4
