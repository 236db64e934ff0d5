"""A rendered request makes, sent to /inference/v1/generate, the submit that the answer would have been made of."""

import asyncio
from typing import Any

import pytest

from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.bulk import NO_BULK, split
from services.shim.rendered import sampling_params
from services.shim.server_info import sampling_defaults
from tests.shim.apis.field_values import SCHEMA, TAG
from tests.shim.harness import FACTS, Shim, error_of
from tests.shim.tool_link import ToolLink, with_tools

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
# Fields that change the answer's tokens, or what else is said of them.
FIELDS: list[dict[str, Any]] = [
    {},
    {"n": 3, "seed": -5},
    {"seed": 2**63 - 1, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
    {"temperature": 0, "min_tokens": 2, "max_tokens": 9, "ignore_eos": True},
    {"logit_bias": {"5": -7.5, "6": 100}, "allowed_token_ids": [1, 2], "stop_token_ids": [3, 4]},
    {"stop": ["a", "é"], "bad_words": ["b"], "include_stop_str_in_output": True},
    {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    {"cache_salt": "salt", "priority": -3},
    {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?", "disable_additional_properties": True}},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
    {"structured_outputs": {"regex": "a*"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"grammar": 'start: "a"'}},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"structural_tag": TAG}},
    {"structural_tag": "00"},  # a text that is no JSON: an answer would refuse it later
    {"guided_json": '{"type": '},
]


async def submit_of(shim: Shim, path: str, body: dict[str, Any]) -> text_pb2.TextSubmit:
    """Returns the submit that the tokenizer gets, and ends the request."""
    async with shim.http() as http:
        answer = asyncio.create_task(http.post(path, json=body))
        sent = asyncio.create_task(shim.sent())
        await asyncio.wait({answer, sent}, return_when=asyncio.FIRST_COMPLETED)
        assert sent.done(), (await answer).text
        submit = sent.result().submit
        for choice in submit.choices:
            shim.end(choice.handle)
        assert (await answer).status_code == 200
    return submit


def comparable(submit: text_pb2.TextSubmit, num_prompt: int) -> text_pb2.TextSubmit:
    """Returns what both submits must have, with the defaults filled in, and the token limit that the context leaves."""
    found = text_pb2.TextSubmit()
    found.CopyFrom(submit)
    for name in ("request_id", "chat", "text", "prompt_token_ids", "traceparent", "attempt", "waited_ms"):
        found.ClearField(name)
    for choice in found.choices:
        choice.handle = 0
    sampling = pb.SamplingParams()
    sampling.CopyFrom(FACTS.default_sampling)
    sampling.MergeFrom(found.sampling)
    if not sampling.HasField("max_tokens"):
        sampling.max_tokens = FACTS.max_model_len - num_prompt
    found.sampling.CopyFrom(sampling)
    found.output.structured.ClearField("field")
    for name in ("token_ids_only", "separate_reasoning"):
        found.output.ClearField(name)
    return found


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "-".join(fields) or "nothing")
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_generate_takes_what_was_rendered(path: str, fields: dict[str, Any]) -> None:
    shim = with_tools()
    logprobs = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    body = BODIES[path] | fields | (logprobs if "n" in fields else {})
    async with shim.http() as http:
        response = await http.post(f"{path}/render", json=body)
    assert response.status_code == 200, response.text
    rendered = response.json() if path == CHAT else response.json()[0]
    direct = await submit_of(shim, path, body)
    token_in = await submit_of(shim, GENERATE, rendered)
    assert unpack_u32(token_in.prompt_token_ids) == rendered["token_ids"]
    count = len(rendered["token_ids"])
    assert comparable(token_in, count) == comparable(direct, count)
    assert token_in.output.token_ids_only and not direct.output.token_ids_only


async def test_the_other_fields() -> None:
    async with with_tools().http() as http:
        body = BODIES[CHAT] | {"stream": True, "stream_options": {"include_usage": True}}
        found = (await http.post(f"{CHAT}/render", json=body, headers={"x-request-id": "mine"})).json()
        assert found["request_id"] == "chatcmpl-mine" and found["model"] == "fake"
        assert found["stream_options"] == {"include_usage": True, "continuous_usage_stats": False} and found["stream"]
        assert found["sampling_params"] == sampling_defaults(FACTS.default_sampling) | {
            "max_tokens": FACTS.max_model_len - len(found["token_ids"])
        }
        for name in ("features", "kv_transfer_params", "assistant_tokens_mask", "token_offsets", "cache_salt"):
            assert found[name] is None
        several = (await http.post(f"{TEXT}/render", json={"prompt": ["a", "b c"], "request_id": "x" * 256})).json()
        assert [len(one["token_ids"]) for one in several] == [1, 2] and several[0]["sampling_params"][
            "max_tokens"
        ] == 16
        assert all(len(one["request_id"]) == 256 for one in several) and several[0]["stream_options"] is None


async def test_a_truncated_prompt_is_rendered_so() -> None:
    async with with_tools().http() as http:
        whole = (await http.post(f"{TEXT}/render", json={"prompt": "Which way to go?"})).json()[0]["token_ids"]
        body = {"prompt": "Which way to go?", "truncate_prompt_tokens": 2}
        assert (await http.post(f"{TEXT}/render", json=body)).json()[0]["token_ids"] == whole[-2:]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (CHAT, {"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
        (CHAT, {"thinking_token_budget": 5}, "thinking_token_budget"),
    ],
)
async def test_what_generate_cannot_say_is_refused(path: str, fields: dict[str, Any], param: str) -> None:
    async with with_tools().http() as http:
        error = error_of(await http.post(f"{path}/render", json=BODIES[path] | fields), 400)
    assert error["param"] == param and "is not supported by this route" in error["message"]


async def test_tools_are_in_the_prompt() -> None:
    async with with_tools(ToolLink(max_model_len=4096)).http() as http:
        plain, more = [
            (await http.post(f"{CHAT}/render", json=BODIES[CHAT] | fields)).json() for fields in ({}, {"tools": TOOLS})
        ]
    assert len(more["token_ids"]) > len(plain["token_ids"]) and "tools" not in more["sampling_params"]


def test_a_sampling_field_that_comes_later_is_refused() -> None:
    """Until someone decides here what it is in vLLM's object."""
    later = pb.SamplingParams(thinking_budget=pb.ThinkingBudget(max_tokens=5))
    with pytest.raises(TandemError, match="thinking_budget is not supported by this route"):
        sampling_params(text_pb2.TextSubmit(sampling=later), NO_BULK, pb.SamplingParams())


def test_a_large_form_is_read_from_the_bulk() -> None:
    schema = b'{"description": "' + b"x" * 100_000 + b'"}'
    structured = text_pb2.StructuredOutput(json_schema=schema, strict=True)
    submit = text_pb2.TextSubmit(output=text_pb2.OutputSpec(structured=structured, skip_special_tokens=True))
    bulk = split(submit)
    found = sampling_params(submit, bulk, pb.SamplingParams())
    assert bytes(found["structured_outputs"]["json"]) == schema and not submit.HasField("output")
