"""PythonCalls: Python's literals come out as the JSON of the same values, however the text is divided."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.python_calls import PythonCalls
from tests.tokenizer.parsing.drive import Call, answer_of

VALUES = st.recursive(
    st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(text: str, length: int = 1000) -> tuple[PythonCalls, list[Call], str]:
    """Returns the reader, the calls and the text that was left; the text is read in parts of this length."""
    writer = PieceWriter(lambda number: f"id{number}")
    reader = PythonCalls(writer, None)
    while text:
        used = reader.read(text[:length])
        text = text[used:]
        if reader.done or reader.failed or reader.broken:
            break
    return reader, answer_of(writer.take()).calls, text


@given(st.dictionaries(st.sampled_from(["a", "b2", "_c", "größe"]), VALUES), st.integers(1, 9))
def test_literals_become_json(arguments: dict[str, Any], length: int) -> None:
    written = f"[f({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"
    reader, calls, rest = read(written + " x", length)
    assert reader.done and rest == " x"
    assert json.loads(calls[0].arguments) == json.loads(json.dumps(arguments))


@pytest.mark.parametrize(
    "value",
    [
        r"'\x41\u00e9\U0001f642\n\t\\\'\"\0'", r"'\N{GREEK SMALL LETTER OMEGA}'", "'a\\\nb'", r"'\d'", "1_000",
        "+2.5e-3", "-.5", "007", "[1, 2,]", "(1,)", "{'a': 1, }", "{1: 2}", "[]", "()", "{}", "{True: None}",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_ways_of_writing(value: str) -> None:
    expected = 7 if value == "007" else ast.literal_eval(value)
    for length in (1, 1000):
        _, calls, _ = read(f"[f(a={value})]", length)
        assert json.loads(calls[0].arguments)["a"] == json.loads(json.dumps(expected))


def test_words_of_json_are_understood() -> None:
    assert read("[f(a=true, b=null)]")[1] == [Call("f", '{"a": true, "b": null}')]


@pytest.mark.parametrize("text", ["x", "[]", "[1]", "[f]", "[f 1", '[f("x")]', "[f(1)]", "[f(a)]", "[(f())]", "[f()(a"])
def test_no_call(text: str) -> None:
    for length in (1, 1000):
        reader, calls, _ = read(text, length)
        assert reader.failed and calls == ([Call("f", "{}")] if text.startswith("[f()") else [])


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("[f(a=1, b=x)]", '{"a": 1, "b": x)]'), ("[f(a=1, b)]", '{"a": 1b)]'), ("[f(a=1e999)]", '{"a": 1e999)]'),
        ("[f(a={[1]: 2})]", '{"a": {[1]: 2})]'), ("[f(a=1; b=2)]", '{"a": 1; b=2)]'),
    ],
)  # fmt: skip
def test_what_cannot_be_read_breaks_the_call_and_loses_nothing(text: str, written: str) -> None:
    for length in (1, 1000):
        reader, calls, rest = read(text, length)
        assert reader.broken and calls[0].arguments + rest == written


def test_half_of_a_surrogate_pair_stays_an_escape() -> None:
    assert read(r"[f(a='\ud83d\ude42')]")[1] == [Call("f", '{"a": "\\ud83d\\ude42"}')]
