import json

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.output_limits import (
    MAX_ALL_CHOICE_CHARACTERS,
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICE_TEXTS,
    MAX_GRAMMAR_CHARACTERS,
    MAX_SCHEMA_BYTES,
)
from services.tokenizer.structured.content import content_fragment
from services.tokenizer.structured.settings import MAX_WHITESPACE, StructuredSettings
from tests.tokenizer.structured.answers import FIELD, allows, form_refusal, grammar_of

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}).encode()


def choices(*texts: str) -> text_pb2.TextChoices:
    return text_pb2.TextChoices(texts=texts)


def test_json_has_a_blank_or_an_indented_line_between_its_parts() -> None:
    grammar = grammar_of(json_schema=SCHEMA)
    for text in ('{"a":1}', '{"a": 1}', '{\n  "a": 1\n}', "{\n" + " " * (MAX_WHITESPACE - 1) + '"a": 1}'):
        assert allows(grammar, text)
    for text in ('{  "a": 1}', '{\n\n"a": 1}', ' {"a": 1}', '{"a": 1} ', "{\n" + " " * MAX_WHITESPACE + '"a": 1}'):
        assert not allows(grammar, text)


def test_settings_and_requests_decide_on_whitespace() -> None:
    structured = text_pb2.StructuredOutput(json_schema=SCHEMA, strict=True, field=FIELD)
    compact = content_fragment(structured, StructuredSettings(disable_any_whitespace=True)).fragment.text
    assert allows(compact, '{"a":1}')
    assert not allows(compact, '{"a": 1}')
    assert not allows(grammar_of(json_schema=SCHEMA, disable_any_whitespace=True), '{"a": 1}')
    narrow = content_fragment(structured, StructuredSettings(max_whitespace=1)).fragment.text
    assert allows(narrow, '{"a":\n1}')
    assert not allows(narrow, '{"a":\n 1}')


@pytest.mark.parametrize("pattern", ["[\\t]*", "\\s{0,3}", "[\\s]*", " ?", "(?: |\\t)+", "\\x09"])
def test_a_request_may_have_its_own_whitespace(pattern: str) -> None:
    grammar = grammar_of(json_object=True, whitespace_pattern=pattern)
    assert allows(grammar, '{"a":\t1}') == (pattern != " ?")
    assert not allows(grammar, '{"a":\f1}')


@pytest.mark.parametrize("pattern", ["a", "[^a]", ".", "\\S", "\\d*", " " * 201, "(", "[ -z]"])
def test_whitespace_that_is_none_is_refused(pattern: str) -> None:
    assert form_refusal(json_object=True, whitespace_pattern=pattern)


def test_any_json_object() -> None:
    grammar = grammar_of(json_object=True)
    assert allows(grammar, '{"a": [1, {"b": null}]}')
    assert not allows(grammar, "[]")


def test_objects_can_be_closed_by_a_request() -> None:
    assert allows(grammar_of(json_schema=SCHEMA), '{"a": 1, "b": 2}')
    assert not allows(grammar_of(json_schema=SCHEMA, disable_additional_properties=True), '{"a": 1, "b": 2}')


def test_a_regular_expression_matches_the_whole_answer() -> None:
    grammar = grammar_of(regex=r"^\d{4}$")
    assert allows(grammar, "2020")
    assert not allows(grammar, "20200")
    assert allows(grammar_of(regex=""), "")


def test_an_answer_is_exactly_one_choice() -> None:
    grammar = grammar_of(choices=choices("a", "ab", 'x\n"é"🎉'))
    for text in ("a", "ab", 'x\n"é"🎉'):
        assert allows(grammar, text)
    assert not allows(grammar, "abc")
    assert allows(grammar_of(choices=choices(*map(str, range(MAX_CHOICE_TEXTS)))), "9999")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one choice"),
        (["a"] * (MAX_CHOICE_TEXTS + 1), "choices are more than"),
        (["a", ""], "choice 1 is empty"),
        (["a" * (MAX_CHOICE_CHARACTERS + 1)], "choice 0 has more than"),
        (["a" * MAX_CHOICE_CHARACTERS] * (MAX_ALL_CHOICE_CHARACTERS // MAX_CHOICE_CHARACTERS + 1), "in all"),
    ],
)
def test_choices_have_limits(texts: list[str], message: str) -> None:
    assert message in form_refusal(choices=choices(*texts))


def test_a_grammar_is_nested_in_the_answers() -> None:
    fragment = content_fragment(text_pb2.StructuredOutput(field=FIELD, grammar='start: "a" start | "b"')).fragment
    assert allows(f'start: "start" {fragment.body}\n' + "\n".join(fragment.rules), "startaab")


@pytest.mark.parametrize(
    "text", [SCHEMA, b"[]"[:1], b"\xff", b"[" * 200, b"1" * 5000, b'{"const": NaN}', b'{"const": 1e999}']
)
def test_json_that_is_malformed_is_refused(text: bytes) -> None:
    if text != SCHEMA:
        assert form_refusal(json_schema=text)
        assert form_refusal(structural_tag=text)


def test_forms_have_limits() -> None:
    assert "are more than" in form_refusal(json_schema=b" " * (MAX_SCHEMA_BYTES + 1))
    assert "more than" in form_refusal(grammar="#" * (MAX_GRAMMAR_CHARACTERS + 1))


def test_strict_is_the_requests() -> None:
    structured = text_pb2.StructuredOutput(json_schema=b'{"items": {"uniqueItems": true}}', field=FIELD)
    assert content_fragment(structured).ignored_keywords == ("/items: uniqueItems",)
    structured.strict = True
    with pytest.raises(TandemError, match='/items: the keyword "uniqueItems" is not supported'):
        content_fragment(structured)


def test_no_form_is_refused() -> None:
    assert "no form" in form_refusal()
