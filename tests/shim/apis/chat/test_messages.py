"""The messages of a chat."""

from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.chat.schema import ChatRequest
from services.shim.parsing import validate
from tests.shim.apis import field_values
from tests.shim.apis.field_values import USER, Json
from tests.shim.harness import FACTS


def refused(change: Json) -> TandemError:
    return field_values.refused(CHAT_API, change)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hi", "messages.0"),
        ({"content": "Hi"}, "messages.0.role"),
        ({"role": "", "content": "Hi"}, "messages.0.role"),
        ({"role": "a" * 65, "content": "Hi"}, "messages.0.role"),
        ({"role": 5, "content": "Hi"}, "messages.0.role"),
        ({"role": None, "content": "Hi"}, "messages.0.role"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": {"text": "Hi"}}, "messages.0.content"),
        ({"role": "user", "content": [5]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": {}}]}, "messages.0.content.0.text"),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": 5}]}, "messages.0.content.0.refusal"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages.0.content.0"),
        ({"role": "user", "content": [{}]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": 5}]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": 5}]},
         "messages.0.content.1.text"),
        ({"role": "assistant", "tool_calls": 5}, "messages.0.tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages.0.tool_calls.0"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, "messages.0.tool_calls.0.function"),
        ({"role": "assistant", "function_call": "f"}, "messages.0.function_call"),
    ],
)  # fmt: skip
def test_paths_into_messages(message: Any, param: str) -> None:
    assert refused({"messages": [message]}).param == param
    second = refused({"messages": [USER, message]})
    assert second.param == param.replace("messages.0", "messages.1")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "martian"])
def test_a_part_that_is_not_text_is_named(kind: str) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": kind, kind: {"url": "http://x"}}]}
    assert refused({"messages": [message]}).message == (
        f"messages.0.content.1: content of type '{kind}' is not supported: this server reads text only, in parts of"
        " type 'text', 'input_text', 'output_text', 'refusal', 'thinking'"
    )


def test_a_part_without_a_type_gets_the_list_of_types() -> None:
    error = refused({"messages": [{"role": "user", "content": [{"image_url": {"url": "http://x"}}]}]})
    assert "'text'" in error.message and "'refusal'" in error.message


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function", "ipython", "martian"])
def test_roles_are_the_templates_business(role: str) -> None:
    validate(ChatRequest, {"messages": [{"role": role, "content": "Hi"}]}, FACTS)


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_only_an_assistant_message_may_lack_content(role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}):
        error = refused({"messages": [{"role": "user", "content": "Hi"}, message]})
        assert error.param == "messages.1.content"
        assert error.message == f"messages.1: a message with role {role} needs content"


@pytest.mark.parametrize("role", ["assistant", "martian"])
def test_other_messages_may_lack_content(role: str) -> None:
    for message in ({"role": role}, {"role": role, "content": None}, {"role": role, "content": []}):
        validate(ChatRequest, {"messages": [message]}, FACTS)


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 0}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "a", "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
        {"content": "a", "refusal": "no", "annotations": [{"type": "url_citation"}], "reasoning": "because"},
        {"content": None, "tool_calls": [CALL], "reasoning_content": None},
        {"content": "a", "tool_calls": []},
        {"content": "a", "reasoning_details": [{"type": "x"}], "cache_control": {"type": "ephemeral"}},
        {"content": [{"type": "refusal", "refusal": "no"}]},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "output_text", "text": "a"}, "b"]},
        {"content": [{"type": "text", "text": None}, {"type": "input_text", "text": "a"}]},
        {"content": [{"type": "text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "no"}]},
        {"content": "", "name": None, "provider_specific_fields": None},
        {"tool_calls": [{"function": {"name": "f", "arguments": {"a": {"b": [1]}}}}]},
        {
            "tool_calls": [
                {"id": None, "type": None, "function": {"name": "f", "arguments": '{"a": '}, "extra": 1},
                CALL,
            ]
        },
        {"content": "", "function_call": {"name": "f", "arguments": "{}"}, "reasoning": "a", "reasoning_content": "a"},
    ],
)
def test_echoed_assistant_messages_pass(message: Json) -> None:
    """An answer that a client sends back, with every field that it or another server gave."""
    submits = field_values.submits(CHAT_API, {"messages": [USER, {"role": "assistant", **message}, USER]})
    assert len(submits) == 1


def test_results_of_calls_pass_in_any_order() -> None:
    calls = [{**CALL, "id": "1"}, {**CALL, "id": "2"}]
    results = [
        {"role": "tool", "content": "b", "tool_call_id": "2"},
        {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "1", "name": "f"},
        {"role": "tool", "content": "", "name": "f"},
        {"role": "function", "content": None, "name": "f"},
    ]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert len(field_values.submits(CHAT_API, {"messages": messages})) == 1


def test_messages_keep_fields_that_only_templates_know() -> None:
    parts = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    tool = {"role": "tool", "content": "5", "tool_call_id": "1", "name": "f"}
    validate(ChatRequest, {"messages": [{"role": "user", "content": parts, "name": "me"}, tool]}, FACTS)
