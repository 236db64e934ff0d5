import json
from typing import Any

import pytest

from services.rpc.output_limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH
from services.tokenizer.structured.json_schema import MAX_IGNORED
from services.tokenizer.structured.schema_walk import MAX_OPTIONAL, UNSUPPORTED
from services.tokenizer.structured.settings import StructuredSettings
from tests.tokenizer.structured.answers import allows, ignored, refusal, schema_grammar

TAGGED = {
    "$defs": {
        "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
        "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
    },
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
}
TREE = {
    "$defs": {
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "additionalProperties": False}
    },
    "$ref": "#/$defs/Node",
}

# schema, answers, other texts
ACCEPTED: list[tuple[Any, list[str], list[str]]] = [
    (True, ["1", "{}", '"a"'], []),
    ({"type": "integer", "minimum": 3}, ["3", "40"], ["2", "3.5"]),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["-5", "9007199254740991"], ["1.5"]),
    ({"minimum": 5, "exclusiveMinimum": True, "type": "integer"}, ["6"], ["5"]),
    ({"type": "integer", "minimum": 5, "exclusiveMinimum": False}, ["5"], ["4"]),
    ({"type": "number", "multipleOf": 0.25}, ["1.75", "2"], ["1.1"]),
    ({"const": 1.0}, ["1"], ["2"]),
    ({"enum": [1, 2.5, "a", None, True]}, ["1", "2.5", '"a"', "null", "true"], ["2", "false"]),
    ({"const": {"a": [1, {"b": "é"}]}}, ['{"a": [1, {"b": "é"}]}'], ["{}"]),
    ({"type": ["integer", "null"], "minimum": 1}, ["null", "1"], ["0"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"éé"'], ['"a"', '"aaaa"']),
    ({"type": "string", "maxLength": 10**18}, ['"a"'], []),
    ({"type": "string", "pattern": r"^\d+$"}, ['"12"'], ['"a"', '"٣"']),
    ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    ({"type": "string", "format": "date"}, ['"2020-12-31"', '"2024-02-29"'], ['"2020-01-32"', '"2021-02-29"']),
    ({"format": "date", "pattern": "^2020"}, ['"2020-01-31"', "1"], ['"2021-01-31"', '"2020"']),
    ({"enum": ["2020-01-01", "soon"], "format": "date"}, ['"2020-01-01"'], ['"soon"']),
    ({"type": "string", "format": "time"}, ['"23:59:59Z"', '"00:00:00.5+14:00"'], ['"23:59:60Z"', '"10:00:00"']),
    ({"type": "string", "format": "date-time"}, ['"2020-01-31T10:00:00Z"'], ['"2020-01-31 10:00:00Z"', '"2020-01-31"']),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, ["[]", "[1, 2]"], ["[1, 2, 3]", '["a"]']),
    ({"type": "array", "prefixItems": [{"type": "null"}], "items": False}, ["[null]"], ["[null, 1]"]),
    ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, ["[null]"], ["[null, 1]", "[1]"]),
    ({"type": "array", "items": {"type": "null"}, "additionalItems": False}, ["[null, null]"], ["[1]"]),
    ({"type": "array", "uniqueItems": False, "prefixItems": []}, ["[1, 1]"], ["1"]),
    ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, ['{"a": 1}', '{"a": 1, "z": 2}'], ["{}"]),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, ['{"a": 1}'], ['{"z": 1}']),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, ['{"b": 1}', "{}"], ['{"c": 1}']),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, ['{"xy": 1}'], ['{"c": 1}']),
    ({"type": "object", "propertyNames": {"type": "string"}}, ['{"xy": 1}'], []),
    ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, ['{"ab": null}', '{"b": 1}'], ['{"a": 1}']),
    ({"type": "object", "minProperties": 1, "maxProperties": 1}, ['{"a": 1}'], ["{}", '{"a": 1, "b": 2}']),
    (
        {"properties": {"a": {}, "b": {}}, "minProperties": 1, "additionalProperties": False, "type": "object"},
        ['{"a": 1}', '{"b": 1}'],
        ["{}"],
    ),
    ({"anyOf": [{"type": "null"}, {"type": "string"}]}, ["null", '"a"'], ["1"]),
    ({"oneOf": [{"type": "null"}, {"type": "string"}]}, ["null", '"a"'], ["1"]),
    ({"anyOf": [{"type": "string"}], "oneOf": [{"const": "a"}, {"const": "b"}]}, ['"a"'], ['"c"']),
    ({"allOf": [{"minimum": 3}, {"maximum": 4}], "type": "integer"}, ["3", "4"], ["5"]),
    (TAGGED, ['{"kind": "cat"}', '{"kind": "dog"}'], ['{"kind": "cow"}']),
    (TREE, ["{}", '{"next": {"next": {}}}'], ['{"next": 1}']),
    ({"$ref": "#/definitions/x", "definitions": {"x": {"type": "null"}}}, ["null"], ["1"]),
    ({"$ref": "#/x/0/b~1c", "x": [{"b/c": {"type": "null"}}]}, ["null"], ["1"]),
    ({"$ref": "#name", "$defs": {"a": {"$anchor": "name", "type": "null"}}}, ["null"], ["1"]),
    (
        {"$id": "http://x.test/root", "$ref": "other", "$defs": {"a": {"$id": "other", "type": "null"}}},
        ["null"],
        ["1"],
    ),
    ({"not": False, "type": "null"}, ["null"], ["1"]),
    ({"if": {"type": "null"}, "type": "null"}, ["null"], ["1"]),
    ({"type": "object", "properties": {"not": {"type": "null"}}, "default": {"not": {}}}, ['{"not": null}'], []),
    (
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "T", "x-y": {"not": 1}, "type": "null"},
        ["null"],
        [],
    ),
    ({"enum": [{"not": 1}]}, ['{"not": 1}'], []),
]


@pytest.mark.parametrize(("schema", "answers", "others"), ACCEPTED, ids=[json.dumps(case[0])[:60] for case in ACCEPTED])
def test_a_schema_allows_what_is_valid(schema: Any, answers: list[str], others: list[str]) -> None:
    grammar = schema_grammar(schema)
    assert [text for text in answers if not allows(grammar, text)] == []
    assert [text for text in others if allows(grammar, text)] == []


# keyword that is not supported: a schema with it
KEYWORDS: dict[str, Any] = {
    "not": {"type": "string"},
    "if": {"type": "string"},
    "uniqueItems": True,
    "contains": {"type": "string"},
    "propertyNames": {"minLength": 3},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"required": ["b"]}},
    "dependencies": {"a": ["b"]},
    "unevaluatedItems": {"type": "string"},
    "unevaluatedProperties": {"type": "string"},
    "$dynamicRef": "#",
    "$recursiveRef": "#",
}
BESIDE = {"then": {"minLength": 1}, "items": True, "additionalProperties": {"type": "string"}}


def _with(keyword: str) -> dict[str, Any]:
    node = {keyword: KEYWORDS[keyword], "then": {"minLength": 1}}
    if keyword.startswith("unevaluated"):
        node["anyOf"] = [True]
    return node


def test_every_keyword_that_is_not_supported_has_a_case() -> None:
    assert set(KEYWORDS) == set(UNSUPPORTED)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_that_is_not_supported_is_refused_with_its_path_or_named(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a/b": {"items": _with(keyword)}}}
    assert refusal(schema) == f'/properties/a~1b/items: the keyword "{keyword}" is not supported'
    assert ignored(schema) == (f"/properties/a~1b/items: {keyword}",)
    assert allows(schema_grammar(schema, strict=False), '{"a/b": ["x", "x"]}')


REFUSED: list[tuple[Any, str]] = [
    (5, "/: a schema must be an object or a boolean"),
    ([], "/: a schema must be an object or a boolean"),
    (False, "/: no value is valid for this schema"),
    ({"not": {}}, "/: no value is valid for this schema"),
    ({"properties": []}, "/properties: this must be an object of schemas"),
    ({"properties": {"a": 1}}, "/properties/a: a schema must be an object or a boolean"),
    ({"allOf": {}}, "/allOf: this must be a list of schemas"),
    ({"anyOf": []}, "/anyOf: this must be a list of at least one schema"),
    ({"type": "text"}, '/: "type" must be one of'),
    ({"type": []}, '/: "type" must be one of'),
    ({"enum": []}, '/: "enum" must be a list with at least one value'),
    ({"minLength": -1}, '/: "minLength" must be a whole number'),
    ({"maxItems": "3"}, '/: "maxItems" must be a whole number'),
    ({"minItems": 10**7}, '/: "minItems" is larger than'),
    ({"minimum": "1"}, '/: "minimum" must be a number'),
    ({"minimum": 2**60}, '/: "minimum" is beyond what is supported'),
    ({"maximum": float("inf")}, '/: "maximum" must be a number'),
    ({"multipleOf": 0}, '/: "multipleOf" must be larger than 0'),
    ({"multipleOf": 1000003}, '/: "multipleOf" is supported up to'),
    ({"const": 2**60}, '/: a number in "const" is beyond'),
    ({"const": "x" * 200_000}, "/const: all constants have more than 200000 characters"),
    ({"anyOf": [{"enum": ["x" * 150_000]}, {"enum": ["y" * 50_000]}]}, "/anyOf/1/enum: all constants have more than"),
    ({"enum": [1e-20]}, '/: a number in "enum" is too small'),
    ({"const": 0.1234567890123456}, '/: a number in "const" has more than 15 digits'),
    ({"required": "a"}, '/: "required" must be a list of names'),
    ({"pattern": 1}, '/: "pattern" must be a regular expression'),
    ({"items": {"pattern": "(?=a)"}}, "/items/pattern: a look-ahead is not supported at character 1"),
    ({"patternProperties": {"a++": {}}}, "/patternProperties/a++: a quantifier after a quantifier"),
    ({"format": 1}, '/: "format" must be a text'),
    ({"$ref": 1}, "/$ref: this must be a text"),
    (
        {"items": {"$ref": "http://x.test/other"}},
        '/items/$ref: the reference "http://x.test/other" is not in the schema',
    ),
    ({"$ref": "http://["}, "is not in the schema"),
    ({"$ref": "#/$defs/b"}, "is not in the schema"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, '/: "oneOf" is only supported if its alternatives exclude'),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, '/: the keyword "maxProperties" is not supported'),
    ({"const": "\ud800"}, "half of a surrogate pair"),
    ({"title": "x", "properties": {"x" * (MAX_SCHEMA_BYTES + 1): {}}}, "is larger than"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=[repr(schema)[:50] for schema, _ in REFUSED])
def test_what_no_schema_has_is_refused_with_its_path(schema: Any, message: str) -> None:
    assert message in refusal(schema)


def test_without_strict_alternatives_may_overlap_and_are_named() -> None:
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    assert ignored(schema) == ("/properties/a: oneOf",)
    assert allows(schema_grammar(schema, strict=False), '{"a": 1.5}')


def test_a_format_that_is_an_annotation_is_named_where_it_says_something_of_texts() -> None:
    schema = {"properties": {"a": {"type": "string", "format": "regex"}, "b": {"type": "integer", "format": "int32"}}}
    assert ignored(schema, strict=True) == ("/properties/a: format",)


def test_what_is_ignored_is_named_up_to_a_limit() -> None:
    schema = {"prefixItems": [{"uniqueItems": True}] * (MAX_IGNORED + 10)}
    assert len(ignored(schema)) == MAX_IGNORED


def test_a_schema_may_be_as_deep_as_the_limit() -> None:
    schema: Any = {"type": "null"}
    for _ in range(MAX_SCHEMA_DEPTH - 1):
        schema = {"items": schema}
    assert allows(schema_grammar(schema), "[]")
    assert "nested more than" in refusal({"items": schema})


def test_objects_can_be_closed() -> None:
    settings = StructuredSettings(disable_additional_properties=True)
    grammar = schema_grammar({"type": "object", "properties": {"a": {"properties": {"b": {}}}}}, settings=settings)
    assert allows(grammar, '{"a": {"b": 1}}')
    assert not allows(grammar, '{"z": 1}')
    assert not allows(grammar, '{"a": {"z": 1}}')
    assert allows(schema_grammar({"type": "object"}, settings=settings), '{"z": 1}')


def test_schemas_that_hold_together_are_not_closed() -> None:
    base = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}],
        "$defs": {"Base": base},
    }
    grammar = schema_grammar(schema, settings=StructuredSettings(disable_additional_properties=True))
    assert allows(grammar, '{"a": 1, "b": null}')


def test_as_many_properties_in_a_row_may_be_optional_as_llguidance_goes_through() -> None:
    names = [f"p{number}" for number in range(2 * MAX_OPTIONAL + 1)]
    schema = {"type": "object", "properties": dict.fromkeys(names, True), "required": [names[MAX_OPTIONAL]]}
    text = f'{{"{names[0]}": 1, "{names[MAX_OPTIONAL]}": 2, "{names[-1]}": 3, "z": 4}}'
    assert allows(schema_grammar(schema), text)
    assert "properties in a row are optional" in refusal({**schema, "required": []})
