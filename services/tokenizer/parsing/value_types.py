"""The types of tool parameters, by the tools' JSON schemas, and values as formats without JSON write them.

Schemas are a client's, and agents send anything: what is not understood is ignored, and means text.
"""

import ast
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

from services.tokenizer.parsing.json_text import json_text

ORDER = ("null", "integer", "number", "boolean", "object", "array")  # in which types are tried, as in vLLM; text last
STRING = frozenset({"string"})
MAX_NESTING = 16  # of anyOf, allOf and $ref
_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}
# Names that schemas use for types without being JSON schema's.
_ALIASES = {
    "str": "string", "text": "string", "int": "integer", "long": "integer", "float": "number", "double": "number",
    "bool": "boolean", "dict": "object", "map": "object", "list": "array", "tuple": "array", "none": "null",
}  # fmt: skip
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}


class Tools:
    """The functions that a request offers."""

    def __init__(self, tools: Any) -> None:
        """`tools`: OpenAI's `tools`, as parsed JSON."""
        self._parameters: dict[str, Mapping[str, Any]] = {}
        self._types: dict[tuple[str, str], frozenset[str]] = {}
        for tool in tools if isinstance(tools, list) else []:
            function = tool.get("function", tool) if isinstance(tool, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._parameters[function["name"]] = parameters if isinstance(parameters, dict) else {}

    @classmethod
    def of_json(cls, tools_json: bytes) -> "Tools":
        return cls(json.loads(tools_json) if tools_json else [])

    def has(self, function: str) -> bool:
        return function in self._parameters

    def types(self, function: str, parameter: str) -> frozenset[str]:
        """Returns JSON schema's names of the types that the parameter may have; "string" if nothing is known."""
        key = (function, parameter)
        if key not in self._types:
            root = self._parameters.get(function, {})
            properties = root.get("properties")
            schema = properties.get(parameter) if isinstance(properties, dict) else None
            self._types[key] = frozenset(_types(schema, root, MAX_NESTING, set())) or STRING
        return self._types[key]


def _types(schema: Any, root: Mapping[str, Any], depth: int, seen: set[int]) -> set[str]:
    """`seen`: the schemas that have been read, by their Python ids. Each is read once: circles of references may have
    more paths than can be followed."""
    if not isinstance(schema, dict) or depth == 0 or id(schema) in seen:
        return set()
    seen.add(id(schema))
    found: set[str] = set()
    kind = schema.get("type")
    kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)]
    found.update(_ALIASES.get(one.lower(), one.lower()) for one in kinds)
    if schema.get("nullable") is True:
        found.add("null")
    if not found and isinstance(schema.get("enum"), list):
        found.update(_JSON_TYPES.get(type(value), "string") for value in schema["enum"])
    if not found and "const" in schema:
        found.add(_JSON_TYPES.get(type(schema["const"]), "string"))
    for name in ("anyOf", "oneOf", "allOf"):
        for one in schema[name] if isinstance(schema.get(name), list) else []:
            found |= _types(one, root, depth - 1, seen)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found |= _types(_at(root, reference), root, depth - 1, seen)
    if not found and ("properties" in schema or "additionalProperties" in schema):
        found.add("object")
    if not found and "items" in schema:
        found.add("array")
    return found


def _at(root: Mapping[str, Any], reference: str) -> Any:
    """Returns what a JSON pointer of this document refers to; None if nothing."""
    place: Any = root
    for step in reference[2:].split("/"):
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place


def json_of(text: str, types: frozenset[str]) -> str:
    """Returns the JSON of a value that is written as plain text, by the types that it may have.

    JSON stays as it is written. Python's words and literals are understood. A value of none of the types becomes a
    string.
    """
    stripped = text.strip()
    for kind in ORDER:
        if kind in types and (found := _as_type(stripped, kind)) is not None:
            return found
    return json_text(text)


def _as_type(text: str, kind: str) -> str | None:
    if kind in ("null", "boolean"):
        word = _WORDS.get(text.lower())
        return word if word is not None and (word == "null") == (kind == "null") else None
    try:
        value, written = _valid_json(text), text
    except (ValueError, RecursionError):
        try:
            value = _literal(text) if text[:1] in "[{(" else float(text)
            written = json_text(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError, OverflowError):
            return None
    if kind == "integer":
        return written if type(value) is int else None
    if kind == "number":
        return written if type(value) in (int, float) else None
    return written if isinstance(value, dict if kind == "object" else list | tuple) else None


def _literal(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unknown escapes in the text
        return ast.literal_eval(text)


def _valid_json(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(word)

    value = json.loads(text, parse_constant=refuse)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(text)
    return value
