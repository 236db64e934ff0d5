"""How many regular expressions of a schema may have to match the same text: llguidance's time doubles with each.

An upper bound, from the prepared schema (json_schema.py) with its definitions at the root.
"""

from collections.abc import Iterator
from typing import Any

MAX_ROUNDS = 20  # until nothing changes

_CHILDREN = ("items", "additionalProperties")
_CHILD_LISTS = ("prefixItems",)
_CHILD_MAPS = ("properties", "patternProperties")


class Intersections:
    def __init__(self, definitions: dict[str, Any], limit: int) -> None:
        """Counts above `limit` are not told apart."""
        self._limit = limit
        self._known = dict.fromkeys(definitions, (0, 0))
        for _ in range(MAX_ROUNDS):
            before = dict(self._known)
            for name in reversed(definitions):
                self._known[name] = self._counts(definitions[name])
            if self._known == before:
                return
        self._known = dict.fromkeys(definitions, (limit + 1, limit + 1))

    def are_few(self, root: Any) -> bool:
        """Returns whether no text in a value of the schema has to match more than `limit` expressions."""
        return max(self._counts(root)) <= self._limit

    def _counts(self, node: Any) -> tuple[int, int]:
        """Returns the most expressions for the value itself, and for any value in it."""
        if isinstance(node, bool):
            return 0, 0
        own = ("pattern" in node) + ("format" in node)
        inner = max((max(self._counts(child)) for child in _children(node)), default=0)
        for at_most in self._beside(node):
            own += at_most[0]
            inner += at_most[1]
        return min(own, self._limit + 1), min(inner, self._limit + 1)

    def _beside(self, node: dict[str, Any]) -> Iterator[tuple[int, int]]:
        """Returns the counts of the schemas that hold for the same value as the node."""
        if "$ref" in node:
            yield self._known[node["$ref"].rpartition("/")[2]]
        for part in node.get("allOf", ()):
            yield self._counts(part)
        for keyword in ("anyOf", "oneOf"):
            counts = [self._counts(option) for option in node.get(keyword, ())]
            if counts:
                yield max(own for own, _ in counts), max(inner for _, inner in counts)


def _children(node: dict[str, Any]) -> Iterator[Any]:
    for keyword in _CHILDREN:
        if keyword in node:
            yield node[keyword]
    for keyword in _CHILD_LISTS:
        yield from node.get(keyword, ())
    for keyword in _CHILD_MAPS:
        yield from node.get(keyword, {}).values()
