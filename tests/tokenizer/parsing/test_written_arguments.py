"""The arguments of a call, and which functions a format can write."""

from typing import Any

import pytest

from services.grammar.errors import GrammarError
from services.grammar.fragment import Fragment
from services.grammar.matcher import Matcher
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.functions import Function
from services.tokenizer.parsing.value_types import Tools
from services.tokenizer.parsing.written_arguments import WrittenArguments, unwritable
from services.tokenizer.parsing.written_text import Markup, RuleBook
from services.tokenizer.structured.settings import StructuredSettings
from tests.grammar.vocabularies import END, demo_tokens, ids_of
from tests.tokenizer.walks import tool

JSON, TAGS, PYTHON = "hermes", "glm45", "pythonic"
A, B = {"type": "integer"}, {"type": "boolean"}


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def accepted(name: str, parameters: Any, text: str, *, by_schema: bool = True) -> bool:
    table = built_in().tools[name]
    (write,) = table.ways_to_write
    book = RuleBook("a")
    function = Function("f", parameters, False, 0)
    arguments = WrittenArguments(
        book, table, write, Markup(table.markers.values(), {}), StructuredSettings().json_form()
    )
    body = arguments.expression(function, Tools([tool("f", parameters)]), by_schema=by_schema)
    matcher = Matcher(demo_tokens(), Fragment(f'{body} "!"', book.rules).text)
    try:
        matcher.replay(ids_of(f"{text}!"))
        if not matcher.is_complete:
            matcher.replay([END])
    except GrammarError:
        return False
    return True


def tags(**values: str) -> str:
    return "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())


def test_arguments_in_json() -> None:
    assert accepted(JSON, schema("a", a=A), '{"a": 1}')
    assert not accepted(JSON, schema("a", a=A), "{}")
    assert accepted(JSON, schema("a", a=A), '{"b": "x"}', by_schema=False)
    assert not accepted(JSON, schema("a", a=A), "1", by_schema=False)


def test_parameters_come_in_order_and_required_ones_come_always() -> None:
    parameters = schema("b", a=A, b=B, c={"type": "string"})
    for values, expected in [
        ({"a": "1", "b": "true", "c": "x"}, True),
        ({"b": "true"}, True),
        ({"b": "true", "c": "x"}, True),
        ({"a": "1"}, False),
        ({"b": "true", "a": "1"}, False),
        ({"b": "true", "d": "1"}, False),
        ({"b": "1"}, False),
    ]:
        assert accepted(TAGS, parameters, tags(**values)) is expected, values
    assert accepted(TAGS, parameters, tags(b="true").replace("\n", ""))
    assert accepted(TAGS, schema(), "")


def test_parameters_of_any_name() -> None:
    assert accepted(TAGS, {"type": "object"}, tags(x="1", some_thing="a\nb"))
    assert accepted(TAGS, {"type": "object"}, "")
    assert accepted(TAGS, schema("a", a=A), tags(b="x"), by_schema=False)
    assert accepted(PYTHON, {"type": "object"}, 'x=1, y_2=["a"]')
    assert accepted(PYTHON, {"type": "object"}, "")
    assert not accepted(PYTHON, {"type": "object"}, "x=1 y=2")


def test_commas_stand_between_the_arguments_of_a_python_call() -> None:
    parameters = schema("b", a=A, b=B, c=A, d={"type": "null"})
    for text, expected in [
        ("b=True", True),
        ("a=1, b=False", True),
        ("b=True, d=None", True),
        ("a=1, b=True, c=2, d=None", True),
        ("a=1", False),
        ("a=1, ", False),
        (", b=True", False),
        ("b=True, a=1", False),
        ("b=true", False),
        ("", False),
    ]:
        assert accepted(PYTHON, parameters, text) is expected, text
    optional = schema(a=A, b=B)
    assert [accepted(PYTHON, optional, text) for text in ("", "a=1", "b=True", "a=1, b=True")] == [True] * 4
    assert not accepted(PYTHON, optional, "a=1b=True")


def test_ignored_keywords_have_their_path_in_the_request() -> None:
    table = built_in().tools[JSON]
    (write,) = table.ways_to_write
    arguments = WrittenArguments(RuleBook("a"), table, write, Markup((), {}), StructuredSettings().json_form())
    function = Function("f", schema(a={"not": {"const": 1}}), False, 3)
    arguments.expression(function, Tools([]), by_schema=True)
    assert arguments.ignored == ["/tools/3/function/parameters/properties/a: not"]


def test_formats_of_texts_that_are_not_enforced_are_named() -> None:
    table = built_in().tools[TAGS]
    (write,) = table.ways_to_write
    arguments = WrittenArguments(
        RuleBook("a"), table, write, Markup(table.markers.values(), {}), StructuredSettings().json_form()
    )
    text = {"type": "string"}
    parameters = schema(a={**text, "format": "uri"}, b={**text, "format": "date"}, c={"type": "array", "items": text})
    arguments.expression(Function("f", parameters, False, 0), Tools([tool("f", parameters)]), by_schema=True)
    assert arguments.ignored == ["/tools/0/function/parameters/properties/a: format"]


@pytest.mark.parametrize(
    ("name", "function", "parameters", "reason"),
    [
        (JSON, "get.weather-2", {"anyOf": [schema()]}, ""),
        (JSON, 'f"', schema(), "the name"),
        (TAGS, "f", schema("a", a=A), ""),
        (TAGS, "f", schema(**{"a b": A}), "the parameter 'a b' cannot be written"),
        (TAGS, "f", {"$ref": "#/$defs/x"}, "not written one by one, because of '$ref'"),
        (TAGS, "f", {"type": "object", "required": ["a"]}, "a required parameter has no schema"),
        (PYTHON, "2f", schema(), "the name '2f' cannot be written"),
        (PYTHON, "f", schema(**{"a-b": A}), "the parameter 'a-b' cannot be written"),
        (PYTHON, "f", [], "not written one by one"),
    ],
)
def test_which_functions_can_be_written(name: str, function: str, parameters: Any, reason: str) -> None:
    (write,) = built_in().tools[name].ways_to_write
    found = unwritable(write, Function(function, parameters, False, 0))
    assert reason in found and bool(reason) == bool(found)
