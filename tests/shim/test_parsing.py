"""Request bodies that are no JSON, and requests beyond the limits of the shim or of the engine, are refused."""

import asyncio
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim import parsing
from services.shim.parsing import (
    MAX_BODY_BYTES,
    MAX_MESSAGE_PARTS,
    MAX_TOOLS,
    check_counts,
    check_prompt_lengths,
    check_submit_size,
    validate,
)
from services.shim.schema import MAX_STOP_STRINGS, ChatRequest, CompletionRequest, GenerationRequest
from tests.shim.harness import LIMITS, Shim, error_of

Body = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
BASE: dict[type[GenerationRequest], Body] = {ChatRequest: {"messages": [USER]}, CompletionRequest: {"prompt": "Hi"}}
both = pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])


def refused(kind: type[GenerationRequest], body: Body, limits: pb.RequestLimits) -> TandemError:
    with pytest.raises(TandemError) as caught:
        validate(kind, BASE[kind] | body, limits)
    assert caught.value.status.http == 400
    return caught.value


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nothing", b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"[" * 10**5, b"\xef\xbb\xbf{}"],
)
async def test_a_body_that_is_no_json(body: bytes) -> None:
    async with Shim().http() as http:
        error = error_of(await http.post("/v1/completions", content=body), 400)
    assert error["message"].startswith("the request body is not JSON")


@pytest.mark.parametrize("body", ["[]", '"text"', "5", "null", "true"])
async def test_a_body_that_is_no_object(body: str) -> None:
    async with Shim().http() as http:
        error = error_of(await http.post("/v1/completions", content=body), 400)
    assert error["message"] == "the request body is not a JSON object"


async def test_a_body_that_is_too_large() -> None:
    async with Shim().http() as http:
        error = error_of(await http.post("/v1/completions", content=bytes(MAX_BODY_BYTES + 1)), 400)
    assert error["message"] == f"the request body is larger than {MAX_BODY_BYTES} bytes"


@pytest.mark.parametrize("depth", [100, 400, 800, 1000])
async def test_deeply_nested_json_is_no_bug(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    body = b'{"messages": [{"role": "user", "content": "Hi", "extra": ' + nested + b"}]}"
    shim = Shim(connected=True)
    async with shim.http() as http:
        answer = asyncio.create_task(http.post("/v1/chat/completions", content=body))
        sent = asyncio.create_task(shim.sent())
        await asyncio.wait({answer, sent}, return_when=asyncio.FIRST_COMPLETED)
        if sent.done():
            shim.fail(sent.result().submit.choices[0].handle, TandemError("INVALID_ARGUMENT", "submitted"))
        sent.cancel()
        assert error_of(await answer, 400)["message"] == "submitted" or depth > 100


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER] * (MAX_MESSAGE_PARTS + 1)}, "messages"),
        ({"messages": [{"role": "user", "content": [{}] * MAX_MESSAGE_PARTS}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}] * MAX_MESSAGE_PARTS}]}, "messages"),
        ({"tools": [5] * (MAX_TOOLS + 1)}, "tools"),
        ({"stop": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop"),
    ],
)
def test_what_is_too_much_is_counted_first(body: Body, param: str) -> None:
    with pytest.raises(TandemError, match=f"{param}: .* at most") as caught:
        check_counts(body)
    assert caught.value.param == param
    check_counts({name: value[:-1] for name, value in body.items()})


@both
def test_the_limits_are_those_of_the_engine(kind: type[GenerationRequest]) -> None:
    limits = pb.RequestLimits(max_n=3, max_logprobs=5, max_stop_token_ids=2, max_num_queued_reqs=64)
    more: Body = {"logprobs": True} if kind is ChatRequest else {}
    at_limit: dict[str, tuple[Any, Any]] = {
        "n": (3, 4),
        kind.logprobs_field: (5, 6),
        "stop_token_ids": ([1, 2], [1, 2, 3]),
    }
    for name, (good, bad) in at_limit.items():
        validate(kind, BASE[kind] | more | {name: good}, limits)
        error = refused(kind, more | {name: bad}, limits)
        limit = str(len(good) if isinstance(good, list) else good)
        assert error.param == name and error.message.startswith(name) and error.message.endswith(limit)


@both
@pytest.mark.parametrize("n", [2**31, 2**64, 10**4000])
def test_an_absurd_n_is_refused_at_once(kind: type[GenerationRequest], n: int) -> None:
    assert refused(kind, {"n": n}, LIMITS).message == f"n: Input should be less than or equal to {LIMITS.max_n}"


@both
def test_an_n_that_no_queue_would_hold_names_the_option(kind: type[GenerationRequest]) -> None:
    limits = pb.RequestLimits(max_n=4, max_num_queued_reqs=4)
    validate(kind, BASE[kind] | {"n": 4}, limits)
    error = refused(kind, {"n": 5}, limits)
    assert (error.param, error.message) == ("n", "n is 5, but max_num_queued_reqs is 4")


@pytest.mark.parametrize("prompt", [[1] * 8, [[1] * 7, [1] * 8]])
def test_token_ids_beyond_the_models_length_are_refused(prompt: list[Any]) -> None:
    with pytest.raises(TandemError, match="the prompt has 8 tokens, but .* context length is 8 tokens"):
        check_prompt_lengths(prompt, max_model_len=8)


@pytest.mark.parametrize("prompt", ["text", ["text"] * 9, [1] * 7, [[1] * 7] * 9, [], [[]], None])
def test_other_prompts_are_left_to_the_schema(prompt: Any) -> None:
    check_prompt_lengths(prompt, max_model_len=8)


def test_a_submit_that_fits_no_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = text_pb2.TextSubmit(request_id="x" * 100)
    monkeypatch.setattr(parsing, "MAX_SUBMIT_BYTES", submit.ByteSize())
    check_submit_size(submit)
    submit.request_id += "x"
    with pytest.raises(TandemError, match="has 103 bytes as an internal message, but at most 102 are allowed"):
        check_submit_size(submit)
