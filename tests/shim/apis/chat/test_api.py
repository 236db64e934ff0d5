"""Chats with tools and reasoning over HTTP: what fields and options change in submit and answer. The test plays the
tokenizer."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from services.rpc.errors import TandemError, invalid
from services.rpc.generated import text_pb2
from services.rpc.pieces import REASONING, TOOL_ARGUMENTS, TOOL_CALL, TOOL_CALL_END, TOOL_NAME
from services.shim.apis.chat.api import CHAT_API
from tests.shim.apis.field_values import CHAT, TOOL, Json
from tests.shim.harness import Shim, error_of

PATH = CHAT_API.path.path
TEXTS = ("hm", "call_1", "f", "{}", "")
KINDS = bytes([REASONING, TOOL_CALL, TOOL_NAME, TOOL_ARGUMENTS, TOOL_CALL_END])
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def asked(shim: Shim, **body: Any) -> tuple[text_pb2.TextSubmit, httpx.Response]:
    """Returns the submit of a request, and its response, which is a thought and a call."""
    async with shim.http() as http:
        response = asyncio.create_task(http.post(PATH, json=CHAT | body))
        submit = (await shim.sent()).submit
        (choice,) = submit.choices
        shim.accept(choice.handle, [1, 2])
        shim.event(choice.handle, 0, [5, 6], *TEXTS, kinds=KINDS)
        shim.end(choice.handle, prompt_tokens=2, output_tokens=2, reasoning_tokens=1)
        return submit, await response


def chunks_of(response: httpx.Response) -> list[Json]:
    *events, done, rest = response.text.split("\n\n")
    assert (response.status_code, done, rest) == (200, "data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_a_call() -> None:
    shim = Shim(connected=True)
    submit, response = await asked(shim, tools=[TOOL])
    assert json.loads(submit.output.tools_json) == [TOOL]
    assert submit.output.tool_choice == text_pb2.TOOL_CHOICE_AUTO and submit.output.separate_reasoning
    body = response.json()
    (choice,) = body["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"], message["tool_calls"]) == ("tool_calls", None, [CALL])
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


async def test_metrics_have_the_reason_of_the_wire() -> None:
    """As in vLLM: a call is a stop there."""
    shim = Shim(connected=True)
    await asked(shim, tools=[TOOL])
    labels = {"model_name": "fake", "engine": "0", "finished_reason": "stop"}
    assert shim.registry.get_sample_value("vllm:request_success_total", labels) == 1


async def test_a_streamed_call() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    _, response = await asked(Shim(connected=True), tools=[TOOL], stream=True, stream_options=options)
    *chunks, last = chunks_of(response)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert [name for chunk in chunks for name in chunk["choices"][0]["delta"]] == [
        "role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_calls",
    ]  # fmt: skip
    assert [chunk["usage"]["completion_tokens_details"] for chunk in chunks] == [None] * len(chunks)
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_older_function_call(stream: bool) -> None:
    submit, response = await asked(Shim(connected=True), functions=[{"name": "f"}], stream=stream)
    assert json.loads(submit.output.tools_json) == [TOOL] and submit.output.single_tool_call
    if stream:
        chunks = chunks_of(response)
        assert chunks[-1]["choices"][0]["finish_reason"] == "function_call" and "tool_calls" not in response.text
        return
    body = response.json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    assert choice["message"]["function_call"] == CALL["function"]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_that_is_not_included(stream: bool) -> None:
    _, response = await asked(Shim(connected=True), tools=[TOOL], include_reasoning=False, stream=stream)
    assert "hm" not in response.text and '"call_1"' in response.text


@pytest.mark.parametrize("hidden", [False, True])
async def test_the_option_that_hides_tools(hidden: bool) -> None:
    shim = Shim(connected=True, exclude_tools_when_tool_choice_none=hidden)
    submit, _ = await asked(shim, tools=[TOOL], tool_choice="none")
    assert bool(submit.output.tools_json) != hidden
    submit, _ = await asked(shim, tools=[TOOL])
    assert submit.output.tools_json


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (invalid("no format of tool calls is known", "tool_choice"), "tool_choice"),
        (invalid("no format of reasoning is known", "thinking_token_budget"), "thinking_token_budget"),
        (invalid("the prompt is empty", "prompt"), "messages"),
    ],
)
async def test_what_the_tokenizer_refuses_names_the_field(error: TandemError, param: str) -> None:
    shim = Shim(connected=True)
    async with shim.http() as http:
        response = asyncio.create_task(http.post(PATH, json=CHAT | {"tools": [TOOL]}))
        (choice,) = (await shim.sent()).submit.choices
        shim.fail(choice.handle, error)
        assert error_of(await response, 400)["param"] == param
