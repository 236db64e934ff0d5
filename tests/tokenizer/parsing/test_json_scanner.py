"""JsonScanner: finds the end of every JSON value, however the text is divided; refuses what is not JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.parsing.json_scanner import MAX_DEPTH, JsonScanner

VALUES = st.recursive(
    st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
)


def end_of(text: str, length: int) -> tuple[int, JsonScanner]:
    """Returns the index behind the value that the text begins with, read in parts of this length; -1 without an end."""
    scanner = JsonScanner()
    for at in range(0, len(text), length):
        end = scanner.scan(text[at : at + length])
        if end >= 0:
            return at + end, scanner
    return -1, scanner


@given(VALUES, st.sampled_from([",", " ", "}", "\n]"]), st.booleans(), st.integers(1, 7))
def test_the_end_of_a_value_is_found(value: Any, following: str, plain: bool, length: int) -> None:
    text = json.dumps(value, ensure_ascii=plain, indent=2 if plain else None)
    end, scanner = end_of(text + following, length)
    assert end == len(text) and not scanner.broken


@given(st.dictionaries(st.text(), VALUES, min_size=1), st.integers(1, 7), st.data())
def test_a_value_that_is_cut_has_no_end(value: dict[str, Any], length: int, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    end, scanner = end_of(cut, length)
    assert end == -1 and not scanner.broken


@pytest.mark.parametrize(
    ("text", "at"), [("{'a': 1}", 1), ('{"a": 1]', 7), ('{"a": <b>}', 6), ("[1; 2]", 2), ("{(", 1), ("]", 0), (";", 0)]
)
def test_what_is_not_json_breaks_at_its_first_character(text: str, at: int) -> None:
    for length in (1, 100):
        end, scanner = end_of(text, length)
        assert scanner.broken and end == at


def test_brackets_without_end_are_refused() -> None:
    assert not end_of("[" * MAX_DEPTH, 64)[1].broken
    assert end_of("[" * (MAX_DEPTH + 1), 64)[1].broken


def test_in_string() -> None:
    scanner = JsonScanner()
    for text, expected in [('{"a', True), ('": ', False), ('"\\', True), ('"', True), ('"', False), ("}", False)]:
        scanner.scan(text)
        assert scanner.in_string == expected
