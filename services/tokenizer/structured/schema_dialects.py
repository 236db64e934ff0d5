"""What older drafts of JSON Schema write otherwise, and what newer keywords mean where an older one says the same."""

import re
from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]
Entry = tuple[str, str, Any]  # keyword of today, keyword as the client wrote it, value

IN_PLACE = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas")


def is_anything(schema: Any) -> bool:
    """Whether every value is valid for the schema, as far as that is obvious."""
    return schema is True or (isinstance(schema, dict) and not schema)


def entries(node: Node) -> Iterator[Entry]:
    """Returns a schema's keywords in their order, as draft 2020-12 has them."""
    names = _named(node)
    for keyword, value in node.items():
        if keyword == "items" and isinstance(value, list):
            yield "prefixItems", keyword, value
        elif keyword == "additionalItems":
            if isinstance(node.get("items"), list):
                yield "items", keyword, value
        elif keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            bound = _bound(keyword)
            if value and bound in node:
                yield keyword, bound, node[bound]
        elif keyword in ("minimum", "maximum") and node.get(_exclusive(keyword)) is True:
            continue
        elif keyword == "unevaluatedProperties" and _says_all(node, "additionalProperties"):
            yield "additionalProperties", keyword, value
        elif keyword == "unevaluatedItems" and _says_all(node, "items"):
            yield "items", keyword, value
        elif keyword == "propertyNames" and names is not None:
            yield "patternProperties", keyword, {names: node.get("additionalProperties", True)}
            yield "additionalProperties", keyword, False
        elif not (keyword == "additionalProperties" and names is not None):
            yield keyword, keyword, value


def has_no_effect(keyword: str, value: Any, node: Node) -> bool:
    """Whether a keyword that is not supported changes nothing."""
    match keyword:
        case "if":
            return "then" not in node and "else" not in node
        case "not":
            return value is False
        case "uniqueItems":
            return value is False
        case "contains":
            return bool(node.get("minContains") == 0) and "maxContains" not in node
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return bool(value == {})
        case "propertyNames":
            return is_anything(value) or bool(value == {"type": "string"})
        case "unevaluatedProperties":
            return is_anything(value) or "additionalProperties" in node
        case "unevaluatedItems":
            return is_anything(value) or "items" in node
    return False


def _bound(exclusive: str) -> str:
    return "minimum" if exclusive == "exclusiveMinimum" else "maximum"


def _exclusive(bound: str) -> str:
    return "exclusiveMinimum" if bound == "minimum" else "exclusiveMaximum"


def _says_all(node: Node, keyword: str) -> bool:
    """Whether `unevaluated…` means what `keyword` would: nothing else evaluates, and `keyword` is not there."""
    return keyword not in node and not any(name in node for name in IN_PLACE)


def _named(node: Node) -> str | None:
    """Returns the pattern of all names of properties, if `propertyNames` says one and no other keyword names any."""
    names = node.get("propertyNames")
    if not isinstance(names, dict) or any(
        keyword in node for keyword in ("properties", "patternProperties", *IN_PLACE)
    ):
        return None
    rest = {keyword: value for keyword, value in names.items() if keyword != "type"}
    if names.get("type", "string") != "string" or len(rest) != 1 or node.get("required"):
        return None
    pattern, listed = rest.get("pattern"), rest.get("enum")
    if isinstance(pattern, str):
        return pattern
    if isinstance(listed, list) and listed and all(isinstance(name, str) for name in listed):
        return f"^(?:{'|'.join(map(re.escape, listed))})$"
    return None
