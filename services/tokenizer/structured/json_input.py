"""Reads JSON that a client sent as bytes: first its size and depth are checked, then it is parsed."""

import json
import re
from typing import Any

from services.rpc.errors import TandemError, invalid
from services.rpc.output_limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NOT_BRACKETS = re.compile(rb"[^\[\]{}]+")


def read_json(data: bytes, where: str) -> Any:
    """Returns the parsed JSON. Raises TandemError (INVALID_ARGUMENT) that names `where`."""
    if len(data) > MAX_SCHEMA_BYTES:
        raise invalid(f"{where}: {len(data)} bytes are more than {MAX_SCHEMA_BYTES}", where)
    if _is_deeper(data, MAX_SCHEMA_DEPTH):
        raise too_deep(where)
    try:
        return json.loads(data, parse_constant=_no_number)
    except ValueError as error:  # also of bytes that are no UTF-8
        raise invalid(f"{where}: not valid JSON: {str(error)[:200]}", where) from None


def too_deep(where: str) -> TandemError:
    return invalid(f"{where}: objects and arrays are nested more than {MAX_SCHEMA_DEPTH} deep", where)


def _is_deeper(data: bytes, limit: int) -> bool:
    """Whether brackets are nested more than `limit` deep, as far as the text is JSON."""
    depth = 0
    for bracket in _NOT_BRACKETS.sub(b"", _STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > limit:
            return True
    return False


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
