from typing import Any

import pytest

from services.tokenizer.structured.schema_ends import endless
from tests.tokenizer.structured.answers import refusal

ITSELF = {"$ref": "#/$defs/a"}

END: list[Any] = [
    {"type": "object", "properties": {"a": ITSELF}},
    {"type": "array", "items": ITSELF},
    {"type": "array", "items": ITSELF, "minItems": 1, "prefixItems": [True]},
    {"anyOf": [ITSELF, {"type": "null"}]},
    {"type": ["object", "null"], "properties": {"a": ITSELF}, "required": ["a"]},
    {"type": "object", "required": ["b"], "properties": {"a": ITSELF}},
    {"required": ["a"], "properties": {"a": ITSELF}},
    {"required": ["b"], "patternProperties": {"b": True}, "additionalProperties": ITSELF, "type": "object"},
    True,
    False,
]
ENDLESS: list[Any] = [
    ITSELF,
    {"allOf": [ITSELF]},
    {"anyOf": [ITSELF, {"type": "object", "required": ["b"], "additionalProperties": ITSELF}]},
    {"type": "object", "properties": {"a": ITSELF}, "required": ["a"]},
    {"type": "array", "items": ITSELF, "minItems": 1},
    {"type": "array", "prefixItems": [ITSELF], "minItems": 1},
]


@pytest.mark.parametrize("schema", END, ids=str)
def test_a_definition_with_values_that_end(schema: Any) -> None:
    assert endless({"a": schema}) is None


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_a_definition_whose_values_never_end(schema: Any) -> None:
    assert endless({"b": {"type": "null"}, "a": schema}) == "a"


def test_such_a_schema_is_refused_with_its_path() -> None:
    schema = {"$defs": {"a": {"type": "array", "items": ITSELF, "minItems": 1}}, "properties": {"x": ITSELF}}
    assert refusal(schema) == "/$defs/a: no value of this schema ever ends"
