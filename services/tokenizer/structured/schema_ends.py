"""Which definitions of a schema have a value that ends: an object that requires itself as a property has none."""

from collections.abc import Iterator
from typing import Any

_SCALARS = {"null", "boolean", "number", "integer", "string"}
_ALL = _SCALARS | {"array", "object"}


def endless(definitions: dict[str, Any]) -> str | None:
    """Returns the name of a definition without a value that ends; None if all have one."""
    ends: set[str] = set()
    found = True
    while found:
        found = False
        for name in reversed(definitions):  # a definition comes before those that it names
            if name not in ends and _ends(definitions[name], ends):
                ends.add(name)
                found = True
    return next((name for name in definitions if name not in ends), None)


def _ends(node: Any, ends: set[str]) -> bool:
    """Whether a value of the schema may end, if those of the definitions in `ends` do."""
    if isinstance(node, bool):
        return True
    if "$ref" in node and node["$ref"].rpartition("/")[2] not in ends:
        return False
    if not all(_ends(part, ends) for part in node.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in node and not any(_ends(option, ends) for option in node[keyword]):
            return False
    named = node.get("type", _ALL)
    types = {named} if isinstance(named, str) else set(named)
    return bool(types & _SCALARS) or any(all(_ends(each, ends) for each in _needed(node, name)) for name in types)


def _needed(node: dict[str, Any], kind: str) -> Iterator[Any]:
    """Returns the schemas that a part of every array or object follows."""
    if kind == "object":
        others = True if "patternProperties" in node else node.get("additionalProperties", True)
        for name in node.get("required", ()):
            yield node.get("properties", {}).get(name, others)
    elif node.get("minItems", 0) > 0:
        first = node.get("prefixItems", [])[: node["minItems"]]
        yield from first
        if node["minItems"] > len(first):
            yield node.get("items", True)
