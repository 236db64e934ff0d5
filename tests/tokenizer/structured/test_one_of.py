from typing import Any

import pytest

from services.tokenizer.structured.one_of import Disjointness


def tagged(name: str, value: Any, **rest: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"const": value}}, "required": [name], **rest}


DEFINITIONS: dict[str, Any] = {
    "cat": tagged("kind", "cat"),
    "dog": tagged("kind", "dog"),
    "loop": {"allOf": [{"$ref": "#/$defs/loop"}]},
}
CAT, DOG, LOOP = ({"$ref": f"#/$defs/{name}"} for name in DEFINITIONS)

EXCLUDE: list[dict[str, Any]] = [
    {"oneOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": ["string", "null"]}, {"type": ["array", "integer"]}]},
    {"oneOf": [{"const": 1}, {"const": True}, {"enum": [2, "1"]}]},
    {"oneOf": [CAT, DOG]},
    {"oneOf": [CAT, {"allOf": [DOG, {"minProperties": 1}]}]},
    {"oneOf": [CAT, DOG, {"type": "null"}]},
    {"oneOf": [{"anyOf": [CAT, {"type": "null"}]}, DOG]},
    {
        "oneOf": [
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {}, "additionalProperties": False},
        ]
    },
    {"oneOf": [{"properties": {"k": {"const": n}}} for n in "ab"], "required": ["k"], "type": "object"},
    {"oneOf": [tagged("kind", number) for number in range(600)]},
    {"oneOf": [False, {"type": "null"}, False]},
    {"oneOf": [True]},
]
OVERLAP: list[dict[str, Any]] = [
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"type": "string"}, {"const": "a"}]},
    {"oneOf": [{"const": 1}, {"enum": [1, 2]}]},
    {"oneOf": [True, {"type": "null"}]},
    {"oneOf": [CAT, CAT]},
    {"oneOf": [CAT, tagged("other", "dog")]},
    {"oneOf": [LOOP, LOOP]},
    {"oneOf": [{"properties": {"k": {"const": n}}} for n in "ab"], "type": "object"},
    {"oneOf": [{"properties": {"k": {"const": n}}} for n in "ab"], "required": ["k"]},
    {"oneOf": [{"anyOf": [CAT, DOG]}, DOG]},
]


@pytest.mark.parametrize("node", EXCLUDE, ids=lambda node: str(node)[:60])
def test_alternatives_that_exclude_each_other(node: dict[str, Any]) -> None:
    assert Disjointness(DEFINITIONS).holds(node)


@pytest.mark.parametrize("node", OVERLAP, ids=lambda node: str(node)[:60])
def test_alternatives_that_may_overlap(node: dict[str, Any]) -> None:
    assert not Disjointness(DEFINITIONS).holds(node)
