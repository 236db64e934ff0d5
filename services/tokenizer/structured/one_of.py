"""Whether the alternatives of a `oneOf` exclude each other, so that it means the same as `anyOf`.

llguidance has no `oneOf`. What counts: different types, different constants, and a required property (a tag) that
differs. The schemas are prepared ones (json_schema.py), with their definitions at the root.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

MAX_COMPARISONS = 5_000
MAX_DEPTH = 20

Parts = list[dict[str, Any]]  # schemas that all hold


class Disjointness:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._left = MAX_COMPARISONS

    def holds(self, node: dict[str, Any]) -> bool:
        """Returns whether no value is valid for two alternatives of the node's `oneOf` and for the node."""
        beside = {keyword: value for keyword, value in node.items() if keyword != "oneOf"}
        parts = [[*self._parts(option), *self._parts(beside)] for option in node["oneOf"]]
        if self._have_tag(parts):
            return True
        return all(self._exclude(one, other, 0) for one, other in itertools.combinations(parts, 2))

    def _have_tag(self, options: list[Parts]) -> bool:
        """Whether each option requires the same property, with other constants; for thousands of options."""
        for name in {name: True for part in options[0] for name in part.get("required", ())}:
            if all(any(name in part.get("required", ()) for part in option) for option in options):
                values = [_values(self._property(option, name)) for option in options]
                known = [value for each in values if each is not None for value in each]
                if (
                    None not in values
                    and len(known) == len(set(known))
                    and all(_types(each) <= {"object"} for each in options)
                ):
                    return True
        return False

    def _parts(self, node: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
        if isinstance(node, bool):
            node = {} if node else {"enum": []}
        yield node
        if depth < MAX_DEPTH:
            if "$ref" in node:
                yield from self._parts(self._definitions[node["$ref"].rpartition("/")[2]], depth + 1)
            for part in node.get("allOf", ()):
                yield from self._parts(part, depth + 1)

    def _exclude(self, one: Parts, other: Parts, depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            return False
        types = _types(one) & _types(other)
        if not types:
            return True
        values = _values(one), _values(other)
        if values[0] is not None and values[1] is not None and not values[0] & values[1]:
            return True
        if types == {"object"} and self._tags_differ(one, other, depth):
            return True
        return self._each_alternative(one, other, depth) or self._each_alternative(other, one, depth)

    def _each_alternative(self, one: Parts, other: Parts, depth: int) -> bool:
        """Whether `other` excludes every alternative of an anyOf or oneOf in `one`."""
        for part in one:
            for keyword in ("anyOf", "oneOf"):
                if keyword in part:
                    rest = [{key: value for key, value in part.items() if key != keyword}]
                    rest += [each for each in one if each is not part]
                    options = ([*self._parts(option), *rest] for option in part[keyword])
                    if all(self._exclude(option, other, depth + 1) for option in options):
                        return True
        return False

    def _tags_differ(self, one: Parts, other: Parts, depth: int) -> bool:
        names = dict.fromkeys(name for part in (*one, *other) for name in part.get("required", ()))
        return any(self._exclude(self._property(one, name), self._property(other, name), depth + 1) for name in names)

    def _property(self, parts: Parts, name: str) -> Parts:
        found: Parts = []
        for part in parts:
            if name in part.get("properties", {}):
                found += self._parts(part["properties"][name])
            elif not part.get("patternProperties"):
                found += self._parts(part.get("additionalProperties", True))
        return found


def _types(parts: Parts) -> set[str]:
    """Returns the types that the parts allow; an integer is a number."""
    types = {"null", "boolean", "object", "array", "number", "string"}
    for part in parts:
        if "type" in part:
            named = [part["type"]] if isinstance(part["type"], str) else part["type"]
            types &= {"number" if name == "integer" else name for name in named}
        if (constants := _constants(part)) is not None:
            types &= {_type(value) for value in constants}
    return types


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _constants(part: dict[str, Any]) -> list[Any] | None:
    if "const" in part:
        return [part["const"]]
    return part.get("enum")


def _values(parts: Parts) -> set[str] | None:
    """Returns the only values that a part allows, as JSON; None: any."""
    for part in parts:
        if (constants := _constants(part)) is not None:
            return {json.dumps(value, sort_keys=True) for value in constants}
    return None
