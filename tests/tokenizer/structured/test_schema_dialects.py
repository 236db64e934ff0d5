from typing import Any

import pytest

from services.tokenizer.structured.schema_dialects import entries, has_no_effect

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"items": [True], "additionalItems": False}, {"prefixItems": [True], "items": False}),
    ({"items": True, "additionalItems": False}, {"items": True}),
    ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
    ({"exclusiveMaximum": False, "maximum": 3}, {"maximum": 3}),
    ({"exclusiveMaximum": True}, {}),
    ({"properties": {}, "unevaluatedProperties": False}, {"properties": {}, "additionalProperties": False}),
    ({"unevaluatedItems": False}, {"items": False}),
    ({"anyOf": [True], "unevaluatedItems": False}, {"anyOf": [True], "unevaluatedItems": False}),
    ({"propertyNames": {"pattern": "a"}}, {"patternProperties": {"a": True}, "additionalProperties": False}),
    (
        {"propertyNames": {"enum": ["a.b", "c"]}, "additionalProperties": {"type": "null"}},
        {"patternProperties": {r"^(?:a\.b|c)$": {"type": "null"}}, "additionalProperties": False},
    ),
    ({"propertyNames": {"pattern": "a"}, "properties": {}}, {"propertyNames": {"pattern": "a"}, "properties": {}}),
    ({"propertyNames": {"pattern": "a"}, "required": ["a"]}, {"propertyNames": {"pattern": "a"}, "required": ["a"]}),
]


@pytest.mark.parametrize(("node", "written"), CASES, ids=[str(node) for node, _ in CASES])
def test_older_and_newer_keywords_become_those_of_today(node: dict[str, Any], written: dict[str, Any]) -> None:
    assert {keyword: value for keyword, _, value in entries(node)} == written


WITHOUT_EFFECT: list[tuple[str, dict[str, Any]]] = [
    ("if", {"if": True}),
    ("not", {"not": False}),
    ("uniqueItems", {"uniqueItems": False}),
    ("contains", {"contains": False, "minContains": 0}),
    ("dependentRequired", {"dependentRequired": {}}),
    ("dependencies", {"dependencies": {}}),
    ("propertyNames", {"propertyNames": {"type": "string"}}),
    ("propertyNames", {"propertyNames": {}}),
    ("unevaluatedProperties", {"unevaluatedProperties": False, "additionalProperties": False}),
    ("unevaluatedItems", {"unevaluatedItems": True}),
]
WITH_EFFECT: list[tuple[str, dict[str, Any]]] = [
    ("if", {"if": True, "then": False}),
    ("not", {"not": {"type": "null"}}),
    ("uniqueItems", {"uniqueItems": True}),
    ("contains", {"contains": True, "minContains": 0, "maxContains": 1}),
    ("propertyNames", {"propertyNames": {"type": "string", "minLength": 1}}),
    ("unevaluatedItems", {"unevaluatedItems": False}),
    ("$dynamicRef", {"$dynamicRef": "#"}),
]


@pytest.mark.parametrize(("keyword", "node"), WITHOUT_EFFECT, ids=str)
def test_a_keyword_without_effect(keyword: str, node: dict[str, Any]) -> None:
    assert has_no_effect(keyword, node[keyword], node)


@pytest.mark.parametrize(("keyword", "node"), WITH_EFFECT, ids=str)
def test_a_keyword_with_an_effect(keyword: str, node: dict[str, Any]) -> None:
    assert not has_no_effect(keyword, node[keyword], node)
