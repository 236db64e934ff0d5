"""The functions that a request offers, as far as grammars of calls need them: names, schemas, which are strict."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.grammar.limits import LIMITS
from services.rpc.errors import invalid
from services.rpc.generated import text_pb2

FIELD = "tools"
MAX_FUNCTIONS = LIMITS.max_items_in_row - 20  # each is an item where a name begins
MAX_BYTES = 2**20  # of all tools
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Function:
    """`parameters`: the JSON schema of its arguments, an object's. `index`: that of its tool."""

    name: str
    parameters: Any
    strict: bool
    index: int

    @property
    def place(self) -> str:
        """The field with its schema, for errors."""
        return f"{FIELD}[{self.index}].function.parameters"

    def ignored(self, keyword: str) -> str:
        """Returns a keyword of the schema, as "/properties/a: not", with its path from the request on."""
        return f"/{FIELD}/{self.index}/function/parameters{keyword}"


def is_enforced(output: text_pb2.OutputSpec) -> bool:
    """Returns whether the answer is one or several calls, whatever the model would do."""
    return output.tool_choice in (text_pb2.TOOL_CHOICE_REQUIRED, text_pb2.TOOL_CHOICE_NAMED)


def functions_of(output: text_pb2.OutputSpec) -> list[Function]:
    """Returns the functions that an answer may call: all of the tools', or those in allowed_tools; none if any call
    may have any form.

    Agents send anything as tools: one that is no function is left out where the model chooses. Raises TandemError
    (INVALID_ARGUMENT) for one that is required, for a name that no tool has, and for too many or too large tools;
    ValueError for malformed JSON.
    """
    tools = json.loads(output.tools_json) if output.tools_json else []
    found = list(_functions(tools if isinstance(tools, list) else [], skips=not is_enforced(output)))
    asked = is_enforced(output) or output.HasField("structured") or output.allowed_tools
    if not asked and not any(function.strict for function in found):
        return []
    if len(output.tools_json) > MAX_BYTES or len(found) > MAX_FUNCTIONS:
        raise invalid(
            f"tools: {len(found)} tools of {len(output.tools_json)} bytes, but for calls that are enforced at most"
            f" {MAX_FUNCTIONS} of {MAX_BYTES} bytes",
            FIELD,
        )
    if is_enforced(output) and not found:
        raise invalid("tool_choice: the request has no tools", "tool_choice")
    names = {function.name: function for function in found}
    for name in output.allowed_tools:
        if name not in names:
            raise invalid(f"tool_choice: there is no tool {name!r}", "tool_choice")
    return [names[name] for name in names if not output.allowed_tools or name in output.allowed_tools]


def _functions(tools: Iterable[Any], *, skips: bool) -> Iterable[Function]:
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            if skips:
                continue
            raise invalid(f"tools: the tool at {index} has no function with a name", FIELD)
        parameters = function.get("parameters")
        yield Function(function["name"], _of_an_object(parameters), function.get("strict") is True, index)


def _of_an_object(parameters: Any) -> Any:
    """Arguments are always an object. Without a schema, there are none."""
    if parameters is None:
        return NO_PARAMETERS
    return {"type": "object", **parameters} if isinstance(parameters, dict) else parameters
