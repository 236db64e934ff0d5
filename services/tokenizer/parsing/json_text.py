"""Reads and writes JSON so that the text is valid Unicode: a piece with half of a surrogate pair could not be sent."""

import json
from typing import Any


def string_value(text: str) -> str | None:
    """Returns the value of a JSON string, with U+FFFD for half of a surrogate pair; None if the text is none.

    Line breaks and other control characters are taken as they are.
    """
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else None


def json_text(value: Any) -> str:
    """Returns a value as JSON, with half of a surrogate pair as an escape. Raises ValueError for infinity and NaN, and
    TypeError for what JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if _is_unicode(text) else json.dumps(value, allow_nan=False)


def escaped(text: str) -> str:
    """Returns a text as it stands within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_object(text: str) -> bool:
    """Returns whether the text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
