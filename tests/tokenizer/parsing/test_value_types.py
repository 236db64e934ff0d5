"""Types by JSON schema, and text values by type."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.parsing.value_types import ORDER, STRING, Tools, json_of
from tests.tokenizer.parsing.drive import function
from tests.tokenizer.parsing.table_runs import deadline


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/Size"}]}, {"number"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/$defs/loop"}, {"string"}),
        ({"enum": ["a", 1]}, {"string", "integer"}),
        ({"const": True}, {"boolean"}),
        ({"properties": {}}, {"object"}),
        ({"items": {"type": "string"}}, {"array"}),
        ({"type": "float"}, {"number"}),
        ({"type": "Dict"}, {"object"}),
        ({}, {"string"}),
        (True, {"string"}),
        ({"type": 7, "anyOf": "x"}, {"string"}),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    parameters = {
        "properties": {"p": schema},
        "$defs": {"Size": {"type": "number"}, "a/b": {"type": "array"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    tools = Tools([{"function": {"name": "f", "parameters": parameters}}])
    assert tools.types("f", "p") == types
    assert tools.types("f", "q") == tools.types("g", "p") == STRING


@given(st.recursive(st.one_of(st.none(), st.text()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_schemas_of_any_shape_are_taken(nonsense: Any) -> None:
    for tools in (nonsense, [nonsense], [{"function": nonsense}], [function("f", p=nonsense)]):
        assert Tools(tools).types("f", "p")


def test_circles_of_references_end_soon() -> None:
    """Followed along each path, these would be read 100**8 times."""
    parameters = {"properties": {"p": {"anyOf": [{"$ref": "#/properties/p"}] * 100 + [{"type": "integer"}]}}}
    with deadline(5):
        assert Tools([{"function": {"name": "f", "parameters": parameters}}]).types("f", "p") == {"integer"}


def test_has() -> None:
    tools = Tools([function("f"), {"name": "g"}, {"function": {"name": 3}}])
    assert tools.has("f") and tools.has("g") and not tools.has("h")


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ('12', ["integer"], '12'), (' 12\n', ["integer"], '12'), ('12', ["string"], '"12"'),
        ('12.5', ["integer"], '"12.5"'), ('1e3', ["number"], '1e3'), ('True', ["boolean"], 'true'),
        ('yes', ["boolean"], '"yes"'), ('None', ["null"], 'null'), ('null', ["string", "null"], 'null'),
        ('{"a": [1]}', ["object"], '{"a": [1]}'), ("{'a': None}", ["object"], '{"a": null}'),
        ('(1, 2)', ["array"], '[1, 2]'), ('[1', ["array"], '"[1"'), ('[1]', ["object"], '"[1]"'),
        ('nan', ["number"], '"nan"'), ('1e999', ["number"], '"1e999"'), ('{1, 2}', ["object", "array"], '"{1, 2}"'),
        ('5', ["string", "integer"], '5'), ("['\\ud800']", ["array"], '["\\ud800"]'), ('', ["integer"], '""'),
        ("[" * 5000, ["array"], json.dumps("[" * 5000)),
    ],
)  # fmt: skip
def test_values(text: str, types: list[str], expected: str) -> None:
    assert json_of(text, frozenset(types)) == expected


@given(st.text(), st.sets(st.sampled_from([*ORDER, "string", "odd"])))
def test_every_text_becomes_json(text: str, types: set[str]) -> None:
    json.loads(json_of(text, frozenset(types))), json_of(text, frozenset(types)).encode()
