"""A parameter's value is read as what its schema allows: text as it is written, all else as JSON."""

import json
from typing import Any

import pytest

from services.grammar.errors import GrammarError
from services.grammar.fragment import Fragment
from services.grammar.matcher import Matcher
from services.rpc.errors import TandemError
from services.tokenizer.parsing.value_types import Tools, json_of
from services.tokenizer.parsing.written_text import Piece, RuleBook
from services.tokenizer.parsing.written_values import ParameterValues
from services.tokenizer.structured.json_schema import prepared_schema
from services.tokenizer.structured.settings import StructuredSettings
from tests.grammar.vocabularies import END, demo_tokens, ids_of
from tests.tokenizer.walks import tool

END_VALUE = Piece("</v>", is_marker=True)


def accepted(schema: Any, text: str, *, trims: bool = False, root: dict[str, Any] | None = None) -> bool:
    whole = {"type": "object", "properties": {"p": schema}, **(root or {})}
    prepared = json.loads(prepared_schema(whole, False, "tools", StructuredSettings().json_form())[0])
    book = RuleBook("v")
    types = Tools([tool("f", whole)]).types("f", "p")
    values = ParameterValues(book, prepared, trims)
    layout = "\n" if trims else ""
    body = values.expression(prepared["properties"]["p"], types, layout, END_VALUE)
    matcher = Matcher(demo_tokens(), Fragment(body, book.rules).text)
    try:
        matcher.replay(ids_of(f"{text}</v>"))
        if not matcher.is_complete:
            matcher.replay([END])
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "string"}, ["", "a\n<b> {1}", "null", "</v"], []),
        ({}, ["anything", "12"], []),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
        ({"type": "string", "minLength": 2}, ["ab", "a" * 50], ["", "a"]),
        ({"enum": ["red", "reddish"]}, ["red", "reddish"], ["re", '"red"']),
        ({"const": "x y"}, ["x y"], ["x"]),
        ({"type": "string", "pattern": "b+"}, ["abba", "b"], ["aa", ""]),
        ({"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
        ({"type": "string", "pattern": "^[|)]$"}, ["|", ")"], ["x", "|)"]),
        ({"type": "string", "pattern": "^(a|b)c$", "maxLength": 2}, ["ac"], ["c", "acc"]),
        ({"type": "string", "format": "date"}, ["2026-02-28", "2026-12-31"], ["2026-02-29", "now", "٢026-02-28"]),
        ({"type": "string", "format": "date-time"}, ["2026-02-28T10:00:00Z"], ["2026-02-28 10:00:00Z"]),
        ({"type": "string", "format": "email"}, ["a.b@c.de"], ["a.b@c", "a b@c.de"]),
        ({"type": "string", "format": "ipv4"}, ["127.0.0.1"], ["127.0.0.300"]),
        ({"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^a*$"}]}, ["aa"], ["a", "ab"]),
        ({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^x"}]}, ["a", "xyz"], ["ab"]),
        ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "a", ""]),
        ({"type": "boolean"}, ["true"], ["True", "yes"]),
        ({"type": "array", "items": {"type": "string"}}, ['["a", "b"]', "[]"], ["a", "[a]"]),
        ({"type": ["string", "null"]}, ["null", "Nullify", "12", ""], ["None", " NULL "]),
        ({"type": ["string", "integer"], "minimum": 5}, ["7", "a7", "true"], ["3", "-1", " 4", "7up"]),
        (
            {"anyOf": [{"type": "string", "pattern": "^[a-z.]*$"}, {"type": "number"}]},
            ["a.b", "1e3"],
            ["inf", ".", "A"],
        ),
        ({"type": ["string", "object"]}, ['{"a": 1}', "a{"], ["{a", " {"]),
        ({"type": ["string", "array"]}, ["[1]", "a["], ["[a", "(1,)"]),
        ({"enum": ["a", 1, None]}, ["a", "1", "null"], ["2", "b", "None"]),
    ],
)
def test_what_may_be_written(schema: Any, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepted(schema, text)] == []
    assert [text for text in no if accepted(schema, text)] == []


def test_references_are_followed() -> None:
    root = {
        "$defs": {
            "word": {"type": "string", "maxLength": 2},
            "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
        }
    }
    assert accepted({"$ref": "#/$defs/word"}, "ab", root=root)
    assert not accepted({"$ref": "#/$defs/word"}, "abc", root=root)
    assert accepted({"$ref": "#/$defs/tree"}, "[[], [[]]]", root=root)
    circle = {
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}}
    }
    assert accepted({"$ref": "#/$defs/a"}, "text", root=circle)


@pytest.mark.parametrize("text", ["ab", "\nab", "ab\n", "\nab\n"])
def test_a_line_break_that_the_parser_takes_as_layout_is_none_of_a_limited_text(text: str) -> None:
    """The template itself has one before a value and one behind it."""
    schema = {"type": "string", "maxLength": 2}
    assert accepted(schema, text, trims=True) is (not text.startswith("\n"))
    assert accepted({"type": "string"}, text, trims=True)


@pytest.mark.parametrize("text", ["7", "-7.5e3", "x", "true", "null", "None", "{}", "[1]", "(1,)", "inf", " 8 ", "١"])
@pytest.mark.parametrize("others", [["integer"], ["number"], ["null"], ["boolean"], ["array", "object"]])
def test_a_text_is_not_read_as_another_type_against_its_limits(text: str, others: list[str]) -> None:
    """No value of these schemas is of another type than text: what may be written is read as text."""
    limits = {"minimum": 10**6, "maximum": 10**6 + 1, "minItems": 3, "maxItems": 3, "minProperties": 3}
    schema = {"anyOf": [{"type": "string"}, *({"type": kind, **limits} for kind in others)]}
    if accepted(schema, text):
        value = json.loads(json_of(text, frozenset(["string", *others])))
        assert isinstance(value, str | bool | None)
        assert isinstance(value, str) or {bool: "boolean"}.get(type(value), "null") in others


def test_alternatives_of_alternatives_have_a_limit() -> None:
    steps = {f"d{index}": {"minLength": 1, "anyOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 4} for index in range(14)}
    root = {"$defs": {**steps, "d14": {"type": "string", "minLength": 1}}}
    with pytest.raises(TandemError, match="too many alternatives"):
        accepted({"type": "string", "$ref": "#/$defs/d0"}, "x", root=root)
