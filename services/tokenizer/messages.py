"""Makes each of OpenAI's messages what chat templates expect, whichever of its forms a client used.

It looks at one message alone: services/tokenizer/call_links.py knows which result belongs to which call, and
services/tokenizer/call_history.py what a template does with them.
"""

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
    """Returns the message as templates expect it: text parts joined by newlines, the older `function_call` as a tool
    call and the older role `function` as `tool`, its reasoning under the names `thinking` and `reasoning_content`, no
    null fields, no empty list of calls. The arguments of calls stay as the client wrote them.

    Raises TandemError (INVALID_ARGUMENT) for parts without text and for calls without a function.
    """
    prepared = {name: value for name, value in message.items() if value is not None}
    reasoning = next((prepared[name] for name in REASONING_FIELDS if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    content = prepared.get("content")
    if isinstance(content, list):
        texts = (_part_text(part) for part in content)
        prepared["content"] = "\n".join(text for text in texts if text is not None)
    if prepared.get("role") == "function":
        prepared["role"] = "tool"
    older_call = prepared.pop("function_call", None)
    calls = prepared.pop("tool_calls", None)
    if older_call is not None and not calls:
        calls = [{"type": "function", "function": older_call}]
    if calls:
        if not isinstance(calls, list):
            raise invalid("tool_calls must be an array", "messages")
        prepared["tool_calls"] = [_checked_call(call) for call in calls]
    return prepared


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message without its reasoning, under any name."""
    return {name: value for name, value in message.items() if name not in REASONING_FIELDS}


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


def _checked_call(call: Any) -> dict[str, Any]:
    """Returns a copy of the call, with a name for its function."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise invalid("a tool call must have a function, which is an object", "messages")
    name = function.get("name", "")
    if not isinstance(name, str):
        raise invalid("the name of a tool call's function must be a string", "messages")
    return {"type": "function", **call, "function": {**function, "name": name}}
