"""The fields of a chat request about tools: what they may be, and the tools that the tokenizer gets.

Schemas of parameters pass unread: agents send any JSON. What calls look like in the answer is in calls.py.
"""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag

from services.shim.apis.structured_types import Strict

MAX_TOOLS = 1024
MAX_NAME = 256


class FunctionTool(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal["function"] = "function"
    function: dict[str, Any]


class FunctionName(Strict):
    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "type:string"
    kind = value.get("type") if isinstance(value, dict) else None
    return f"type:{kind}" if isinstance(kind, str) else None


def _older_tag(value: Any) -> str:
    return "type:object" if isinstance(value, dict) else "type:string"


WORDS = ("none", "auto", "required")
# The tags are no identifiers, so that they do not appear in the path of an error.
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("type:string")]
    | Annotated[NamedTool, Tag("type:function")]
    | Annotated[AllowedToolsChoice, Tag("type:allowed_tools")],
    Discriminator(
        _choice_tag,
        custom_error_type="tool_choice",
        custom_error_message="Input should be "
        + ", ".join(f"'{word}'" for word in WORDS)
        + ", or an object with type 'function' or 'allowed_tools'",
    ),
]
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("type:string")] | Annotated[FunctionName, Tag("type:object")],
    Discriminator(_older_tag),
]


CallMode = Literal["none", "auto", "required", "named"]


def mode_of(choice: Any) -> CallMode:
    """Returns what a ToolChoice or FunctionChoice makes of tool calls."""
    if isinstance(choice, NamedTool | FunctionName):
        return "named"
    if isinstance(choice, AllowedToolsChoice):
        return choice.allowed_tools.mode
    word: CallMode = choice
    return word


def names_in(choice: Any) -> list[str]:
    """Returns the names of the only tools that a ToolChoice or FunctionChoice allows, each once; empty: all."""
    if isinstance(choice, FunctionName):
        return [choice.name]
    if isinstance(choice, NamedTool):
        return [choice.function.name]
    if isinstance(choice, AllowedToolsChoice):
        return list(dict.fromkeys(tool.function.name for tool in choice.allowed_tools.tools))
    return []


def functions_as_tools(functions_json: bytes) -> bytes:
    """Returns the older `functions` as `tools`: each function as the client wrote it. Both are JSON in UTF-8."""
    functions = msgspec.json.decode(functions_json, type=list[msgspec.Raw])
    return msgspec.json.encode([{"type": "function", "function": function} for function in functions])
