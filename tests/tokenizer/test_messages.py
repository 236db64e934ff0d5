"""Messages in any of OpenAI's forms become what templates expect."""

from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.tokenizer.messages import PART_FIELDS, prepared_message, without_reasoning
from services.tokenizer.render import ChatTemplate
from tests.tokenizer.templates import QWEN3


def content_of(parts: list[Any]) -> Any:
    return prepared_message({"role": "assistant", "content": parts})["content"]


@pytest.mark.parametrize(("kind", "field"), PART_FIELDS.items())
def test_the_text_of_each_type_of_part_is_content(kind: str, field: str) -> None:
    assert content_of([{"type": kind, field: "one"}, {"type": "text", "text": "two"}]) == "one\ntwo"


def test_plain_strings_and_parts_without_a_type_are_content() -> None:
    assert content_of(["one", {"text": "two"}, {"type": "refusal", "refusal": "three"}]) == "one\ntwo\nthree"


@pytest.mark.parametrize(("kind", "field"), PART_FIELDS.items())
def test_null_in_a_part_is_skipped(kind: str, field: str) -> None:
    assert content_of([{"type": kind, field: None}, "two", {"type": kind}]) == "two"
    assert content_of([{"type": kind, field: None}]) == ""


@pytest.mark.parametrize("part", [5, None, {"type": "image_url"}, {"type": []}, {"type": "text", "text": 5}])
def test_another_part_is_refused(part: Any) -> None:
    with pytest.raises(TandemError, match="content part") as caught:
        content_of([part])
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")


def test_an_older_function_call_becomes_a_tool_call() -> None:
    call = {"name": "f", "arguments": '{"a": 1}'}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    messages.append({"role": "assistant", "content": None, "function_call": call})
    prepared = prepared_message(messages[1])
    expected = {"type": "function", "function": call}
    assert prepared == {"role": "assistant", "tool_calls": [expected]}
    text = ChatTemplate(QWEN3, {}).render(messages, None, {}, add_generation_prompt=True, continue_final_message=False)
    assert '{"name": "f", "arguments": {"a": 1}}' in text


def test_the_role_function_becomes_tool() -> None:
    assert prepared_message({"role": "function", "name": "f", "content": "7"}) == {
        "role": "tool",
        "name": "f",
        "content": "7",
    }


def test_an_empty_list_of_calls_is_left_out() -> None:
    """gpt-oss' template takes any list for a call."""
    assert prepared_message({"role": "assistant", "content": "a", "tool_calls": []}) == {
        "role": "assistant",
        "content": "a",
    }


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([5], "must have a function"),
        ([{"id": "a"}], "must have a function"),
        ([{"function": "f"}], "must have a function"),
        ([{"function": {"name": 5}}], "name of a tool call"),
        ({"function": {}}, "must be an array"),
    ],
)
def test_calls_without_a_function_are_refused(calls: Any, reason: str) -> None:
    with pytest.raises(TandemError, match=reason) as caught:
        prepared_message({"role": "assistant", "tool_calls": calls})
    assert (caught.value.code, caught.value.param) == ("INVALID_ARGUMENT", "messages")


def test_without_reasoning_leaves_out_all_its_names() -> None:
    message = {"role": "assistant", "content": "a", "reasoning": "r"}
    assert set(prepared_message(message)) == {"role", "content", "reasoning", "thinking", "reasoning_content"}
    assert without_reasoning(prepared_message(message)) == {"role": "assistant", "content": "a"}


def test_newer_tool_calls_win_over_a_function_call() -> None:
    new = {"type": "function", "function": {"name": "new", "arguments": "{}"}}
    prepared = prepared_message({"role": "assistant", "tool_calls": [new], "function_call": {"name": "old"}})
    assert [call["function"]["name"] for call in prepared["tool_calls"]] == ["new"] and len(prepared) == 2


def test_fields_that_are_null_are_left_out() -> None:
    assert prepared_message({"role": "user", "content": "a", "function_call": None, "name": None}) == {
        "role": "user",
        "content": "a",
    }
