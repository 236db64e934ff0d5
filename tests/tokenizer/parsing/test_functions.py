"""The functions that a request offers, for grammars: which of them may be called, and by which schemas."""

import json
from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.tokenizer.parsing.functions import MAX_BYTES, MAX_FUNCTIONS, NO_PARAMETERS, functions_of
from tests.tokenizer.walks import tool

AUTO, REQUIRED = text_pb2.TOOL_CHOICE_AUTO, text_pb2.TOOL_CHOICE_REQUIRED
SCHEMA = {"type": "object", "properties": {"a": {}}}


def spec(tools: Any, choice: int = REQUIRED, *allowed: str, **fields: Any) -> text_pb2.OutputSpec:
    choice_value = text_pb2.ToolChoice.ValueType(choice)
    return text_pb2.OutputSpec(
        tools_json=json.dumps(tools).encode(), tool_choice=choice_value, allowed_tools=allowed, **fields
    )


def names(output: text_pb2.OutputSpec) -> list[str]:
    return [function.name for function in functions_of(output)]


def test_a_function_has_its_schema_and_place() -> None:
    first, second, third = functions_of(
        spec([tool("f", SCHEMA, strict=True), tool("g", None), {"name": "h", "parameters": {"properties": {}}}])
    )
    assert (first.name, first.parameters, first.strict, first.place) == (
        "f", SCHEMA, True, "tools[0].function.parameters"
    )  # fmt: skip
    assert (second.name, second.parameters, second.strict) == ("g", NO_PARAMETERS, False)
    assert (third.name, third.parameters) == ("h", {"type": "object", "properties": {}})
    assert second.ignored("/a: not") == "/tools/1/function/parameters/a: not"


def test_which_functions_may_be_called() -> None:
    tools = [tool("f", SCHEMA), tool("g", SCHEMA)]
    assert names(spec(tools)) == ["f", "g"]
    assert names(spec(tools, REQUIRED, "g")) == names(spec(tools, AUTO, "g")) == ["g"]
    assert names(spec(tools, AUTO)) == []
    assert names(spec([*tools, tool("h", SCHEMA, strict=True)], AUTO)) == ["f", "g", "h"]
    form = text_pb2.StructuredOutput(json_object=True)
    assert names(spec(tools, AUTO, structured=form)) == ["f", "g"]


def test_odd_tools_are_left_out_where_the_model_chooses() -> None:
    odd = [{"type": "web_search"}, "x", {"function": {"name": 5}}, tool("f", None), tool("f", SCHEMA, strict=True)]
    (found,) = functions_of(spec(odd, AUTO))
    assert found.strict and found.parameters == SCHEMA
    assert names(spec({"a": 1}, AUTO)) == []


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (spec([tool("f", None)], REQUIRED, "fly"), "tool_choice: there is no tool 'fly'"),
        (spec([tool("f", None)], AUTO, "fly"), "tool_choice: there is no tool 'fly'"),
        (spec([{"type": "function"}]), "tools: the tool at 0 has no function with a name"),
        (spec([]), "tool_choice: the request has no tools"),
        (
            spec([tool(f"f{index}", None) for index in range(MAX_FUNCTIONS + 1)]),
            "tools: 381 tools of .* but for calls that are enforced at most 380",
        ),
        (spec([tool("f", {"description": "x" * MAX_BYTES})]), "tools: 1 tools of .* at most 380 of 1048576 bytes"),
    ],
)
def test_what_cannot_be_called_is_refused(output: text_pb2.OutputSpec, message: str) -> None:
    with pytest.raises(TandemError, match=message):
        functions_of(output)


def test_any_number_of_tools_is_taken_where_nothing_is_enforced() -> None:
    assert names(spec([tool(f"f{index}", None) for index in range(MAX_FUNCTIONS + 1)], AUTO)) == []
