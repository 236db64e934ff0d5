"""Varied schemas of a seed, as clients write them: objects of named fields, nested, with references and alternatives.

Bounded ones have a maximum for each string, number, array and object, so that any model comes to their end. The others
have the same forms without maxima, and recursion. The same seed always gives the same schemas.
"""

from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]

FIELDS = (
    "name age city email price count title status tags items address street country id kind colour size weight active "
    "created comment score unit author year language latitude longitude currency total note phone priority"
).split()
WORDS = "red green blue small large open closed pending north south apple pear low high unknown café naïve 東京".split()
PATTERNS = (
    "^[A-Z]{2}[0-9]{4}$", "^[a-z]{1,12}$", "^(yes|no|maybe)$", "^#[0-9a-fA-F]{6}$", "^[0-9]{3}-[0-9]{4}$",
    "^v[0-9]{1,2}\\.[0-9]{1,2}$", "^[A-Za-z][A-Za-z0-9_]{0,15}$", "^\\+[1-9][0-9]{6,12}$",
)  # fmt: skip
FORMATS = ("date", "time", "date-time", "uuid", "ipv4")


class Writer:
    """Writes one schema. `bounded`: everything has a maximum."""

    def __init__(self, rng: Random, bounded: bool) -> None:
        self._rng = rng
        self._bounded = bounded
        self._definitions: Schema = {}

    def schema(self) -> Schema:
        """Returns a schema of an object, sometimes of an array."""
        written = self._object(3) if self._rng.random() < 0.85 else self._array(3)
        if self._definitions:
            written["$defs"] = self._definitions
        if self._rng.random() < 0.2:
            written = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Answer", **written}
        return written

    def _any(self, depth: int) -> Schema:
        simple: list[Callable[[], Schema]] = [
            self._string, self._string, self._enum, self._integer, self._integer, self._number, self._boolean,
            self._pattern, self._format, self._const, self._nullable,
        ]  # fmt: skip
        if depth > 0 and self._rng.random() < 0.35:
            nested = self._rng.choice((self._object, self._object, self._array, self._tuple, self._either))
            return nested(depth - 1) if self._rng.random() < 0.8 else self._reference(depth - 1)
        written = self._rng.choice(simple)()
        if self._rng.random() < 0.2:
            written["description"] = "A field of the answer."
        return written

    def _object(self, depth: int) -> Schema:
        names = self._rng.sample(FIELDS, self._rng.randint(1, 5))
        written: Schema = {"type": "object", "properties": {name: self._any(depth) for name in names}}
        if self._rng.random() < 0.8:
            written["required"] = self._rng.sample(names, self._rng.randint(1, len(names)))
        if self._bounded or self._rng.random() < 0.4:
            written["additionalProperties"] = False
        elif self._rng.random() < 0.4:
            written["additionalProperties"] = {"type": "integer"}
        return written

    def _array(self, depth: int) -> Schema:
        written = {"type": "array", "items": self._any(depth)}
        if self._bounded:
            written["maxItems"] = self._rng.randint(1, 4)
        if self._rng.random() < 0.4:
            written["minItems"] = 1
        return written

    def _tuple(self, depth: int) -> Schema:
        items = [self._any(depth) for _ in range(self._rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}

    def _either(self, depth: int) -> Schema:
        return {"anyOf": [self._any(depth), self._integer(), {"type": "null"}]}

    def _reference(self, depth: int) -> Schema:
        name = self._rng.choice(("Address", "Item", "Person", "Node"))
        if name not in self._definitions:
            self._definitions[name] = {}
            self._definitions[name] = self._object(0)
            if not self._bounded:
                self._definitions[name]["properties"]["children"] = {
                    "type": "array",
                    "items": {"$ref": f"#/$defs/{name}"},
                }
        return {"$ref": f"#/$defs/{name}"}

    def _string(self) -> Schema:
        written: Schema = {"type": "string"}
        if self._bounded:
            written["maxLength"] = self._rng.choice((3, 8, 20, 30))
        if self._rng.random() < 0.3:
            written["minLength"] = self._rng.randint(1, 3)
        return written

    def _integer(self) -> Schema:
        if not self._bounded and self._rng.random() < 0.5:
            return {"type": "integer"}
        low = self._rng.choice((-100, -7, 0, 1, 10))
        high = low + self._rng.choice((1, 9, 120, 5000))
        written: Schema = {"type": "integer"}
        written["minimum" if self._rng.random() < 0.8 else "exclusiveMinimum"] = low
        written["maximum" if self._rng.random() < 0.8 else "exclusiveMaximum"] = high + 1
        return written

    def _number(self) -> Schema:
        if not self._bounded and self._rng.random() < 0.5:
            return {"type": "number"}
        low = self._rng.choice((-90.0, 0, 0.5))
        return {"type": "number", "minimum": low, "maximum": low + self._rng.choice((1, 90.5, 1000))}

    def _boolean(self) -> Schema:
        return {"type": "boolean"}

    def _enum(self) -> Schema:
        values: list[Any] = self._rng.sample(WORDS, self._rng.randint(1, 5))
        if self._rng.random() < 0.2:
            return {"enum": [*values, 7, None, True]}
        return {"type": "string", "enum": values}

    def _const(self) -> Schema:
        return {"const": self._rng.choice((*WORDS, 3, True, None))}

    def _pattern(self) -> Schema:
        return {"type": "string", "pattern": self._rng.choice(PATTERNS)}

    def _format(self) -> Schema:
        return {"type": "string", "format": self._rng.choice(FORMATS)}

    def _nullable(self) -> Schema:
        if self._bounded:
            return {"type": ["string", "null"], "maxLength": self._rng.randint(1, 12)}
        return {"type": self._rng.choice((["string", "null"], ["integer", "null"], ["boolean", "string"]))}


def varied_schemas(count: int, bounded: bool) -> list[Schema]:
    """Returns the first `count` schemas; a larger count leaves them unchanged."""
    return [Writer(Random(f"schema {bounded} {index}"), bounded).schema() for index in range(count)]
