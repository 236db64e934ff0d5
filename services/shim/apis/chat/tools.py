"""The fields of a chat request about tools: what they may be, and the tools that the tokenizer gets.

Schemas of parameters pass unread: agents send any JSON. What calls look like in the answer is in calls.py.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class FunctionTool(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal["function"] = "function"
    function: dict[str, Any]


def _not_yet(value: Any) -> Any:
    """Refuses OpenAI's further values as what they are: known, but missing here."""
    if value == "required" or isinstance(value, Mapping):
        what = '"required"' if value == "required" else "a call of a named function"
        raise PydanticCustomError("not_yet", what + ' is not supported by this server yet: use "auto" or "none"')
    return value


CallChoice = Annotated[Literal["none", "auto"], BeforeValidator(_not_yet)]


def functions_as_tools(functions_json: bytes) -> bytes:
    """Returns the older `functions` as `tools`: each function as the client wrote it. Both are JSON in UTF-8."""
    functions = msgspec.json.decode(functions_json, type=list[msgspec.Raw])
    return msgspec.json.encode([{"type": "function", "function": function} for function in functions])
