"""Which calls a chat asks for: the tokenizer gets the mode and the names, and a name must be that of a tool."""

from typing import Any

import pytest

from services.rpc.generated import text_pb2
from services.shim.apis.chat.api import CHAT_API
from tests.shim.apis.field_values import Json, refused, submits

NONE, AUTO = text_pb2.TOOL_CHOICE_NONE, text_pb2.TOOL_CHOICE_AUTO
REQUIRED, NAMED = text_pb2.TOOL_CHOICE_REQUIRED, text_pb2.TOOL_CHOICE_NAMED
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]}
FUNCTIONS: Json = {"functions": [{"name": "f"}, {"name": "g"}]}


def named(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("fields", "mode", "names"),
    [
        (TOOLS | {"tool_choice": "required"}, REQUIRED, []),
        (TOOLS | {"tool_choice": named("g")}, NAMED, ["g"]),
        (TOOLS | {"tool_choice": allowed("auto", "f", "h")}, AUTO, ["f", "h"]),
        (TOOLS | {"tool_choice": allowed("required", "f", "f")}, REQUIRED, ["f"]),
        (FUNCTIONS | {"function_call": {"name": "g"}}, NAMED, ["g"]),
        (FUNCTIONS | {"function_call": "auto"}, AUTO, []),
    ],
)
def test_what_the_tokenizer_gets(fields: Json, mode: Any, names: list[str]) -> None:
    (found,) = submits(CHAT_API, fields)
    assert (found.output.tool_choice, list(found.output.allowed_tools)) == (mode, names)
    assert found.output.tools_json


@pytest.mark.parametrize(("parallel", "single"), [(True, False), (False, True)])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_one_call_or_several(choice: str, parallel: bool, single: bool) -> None:
    (found,) = submits(CHAT_API, TOOLS | {"tool_choice": choice, "parallel_tool_calls": parallel})
    assert found.output.single_tool_call == single


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice", "tool_choice asks for a call, but there are no tools"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "but there are no tools"),
        ({"tool_choice": named("f")}, "tool_choice", "but there are no tools"),
        ({"tool_choice": allowed("auto", "f")}, "tool_choice", "there is no function 'f' in tools"),
        ({"function_call": {"name": "f"}}, "function_call", "but there are no functions"),
        (TOOLS | {"tool_choice": named("x")}, "tool_choice", "tool_choice: there is no function 'x' in tools"),
        (TOOLS | {"tool_choice": allowed("auto", "f", "x")}, "tool_choice", "there is no function 'x' in tools"),
        (FUNCTIONS | {"function_call": {"name": "x"}}, "function_call", "there is no function 'x' in functions"),
        (FUNCTIONS | {"tool_choice": "required"}, "tool_choice", "with functions, use function_call"),
        (TOOLS | {"function_call": {"name": "f"}}, "function_call", "with tools, use tool_choice"),
        (TOOLS | {"tool_choice": "any"}, "tool_choice", "'required'"),
        (TOOLS | {"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice", "'allowed_tools'"),
        (TOOLS | {"tool_choice": {"type": "function"}}, "tool_choice.function", "missing parameter"),
        (TOOLS | {"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name", "missing"),
        (TOOLS | {"tool_choice": allowed("any", "f")}, "tool_choice.allowed_tools.mode", "'required'"),
        (TOOLS | {"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools", "at least 1 item"),
        (FUNCTIONS | {"function_call": "required"}, "function_call", "'auto'"),
    ],
)
def test_what_is_refused(fields: Json, param: str, message: str) -> None:
    error = refused(CHAT_API, fields)
    assert error.param == param and message in error.message


def test_a_tool_without_a_name_cannot_be_named() -> None:
    tools: Json = {"tools": [{"function": {}}, {"function": {"name": 5}}, {"function": {"name": ["f"]}}]}
    assert refused(CHAT_API, tools | {"tool_choice": named("f")}).param == "tool_choice"


def test_a_form_beside_tools_reaches_the_tokenizer() -> None:
    (found,) = submits(CHAT_API, TOOLS | {"response_format": {"type": "json_object"}})
    assert found.output.tool_choice == AUTO and found.output.structured.json_object


@pytest.mark.parametrize("choice", ["none", {"type": "text"}])
def test_without_calls_no_names_are_sent(choice: Any) -> None:
    fields: Json = {"tool_choice": choice} if choice == "none" else {"response_format": choice}
    (found,) = submits(CHAT_API, TOOLS | fields)
    assert list(found.output.allowed_tools) == []
