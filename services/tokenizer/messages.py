"""Makes OpenAI's messages what chat templates expect, whichever of its forms a client used."""

import json
from typing import Any

from services.rpc.errors import invalid

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")  # clients use any of these names
# The field with the text of each type of content part. Source: vLLM's renderers/chat_utils.py (TEXT_PART_TYPES).
PART_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


def prepared_message(message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message as templates expect it: text parts joined by newlines, arguments of tool calls as objects,
    the older `function_call` as a tool call, its reasoning under the names `thinking` and `reasoning_content`, no null
    fields.

    Raises TandemError (INVALID_ARGUMENT) for arguments that are not JSON and parts without text.
    """
    prepared = {name: value for name, value in message.items() if value is not None}
    reasoning = next((prepared[name] for name in REASONING_FIELDS if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    content = prepared.get("content")
    if isinstance(content, list):
        texts = (_part_text(part) for part in content)
        prepared["content"] = "\n".join(text for text in texts if text is not None)
    older_call = prepared.pop("function_call", None)
    if older_call is not None and not prepared.get("tool_calls"):
        prepared["tool_calls"] = [{"type": "function", "function": older_call}]
    calls = prepared.get("tool_calls")
    if calls:
        prepared["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return prepared


def _part_text(part: Any) -> str | None:
    """Returns the text of a content part, whatever its type; None: it is null, which templates do not see."""
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else None
    field = PART_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise invalid(f"a content part must be a string or have one of the types {', '.join(PART_FIELDS)}", "messages")
    text = part.get(field)
    if text is not None and not isinstance(text, str):
        raise invalid(f"the {field!r} of a content part must be a string", "messages")
    return text


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments else {}
        except (ValueError, RecursionError) as error:
            raise invalid(f"the arguments of a tool call are not JSON: {error}", "messages") from error
    return {**call, "function": function}
