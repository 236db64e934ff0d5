from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.tokenizer.structured.schema_place import Place
from services.tokenizer.structured.schema_values import (
    DROPPED,
    MAX_BOUND,
    MAX_COUNT,
    READERS,
    are_few_remainders,
    read_format,
)

PLACE = Place("schema")
READ: list[tuple[str, Any, Any]] = [
    ("type", ["integer"], "integer"),
    ("type", ["integer", "number", "null", "null"], ["number", "null"]),
    ("required", ["b", "a", "b"], ["b", "a"]),
    ("required", [], DROPPED),
    ("minItems", 0, DROPPED),
    ("minItems", 2.0, 2),
    ("maxItems", 0, 0),
    ("maxItems", MAX_COUNT + 1, DROPPED),
    ("minimum", 0.1, 0.1),
    ("minimum", -(2**63), -MAX_BOUND),
    ("exclusiveMaximum", 10**300, MAX_BOUND),
    ("multipleOf", 0.01, 0.01),
    ("multipleOf", 1_000_000, 1_000_000),
    ("const", -0.0, 0),
    ("const", {"a": [2.0, True]}, {"a": [2, True]}),
    ("pattern", "^a/b$", r"^a\x{2f}b$"),
]


@pytest.mark.parametrize(
    ("keyword", "value", "read"), READ, ids=lambda one: "dropped" if type(one) is object else str(one)[:40]
)
def test_values_are_written_as_llguidance_takes_them(keyword: str, value: Any, read: Any) -> None:
    assert READERS[keyword](value, keyword, PLACE) == read


@pytest.mark.parametrize("keyword", READERS)
@pytest.mark.parametrize("value", [{"a": float("nan")}, float("nan")], ids=str)
def test_no_keyword_takes_what_is_no_number(keyword: str, value: Any) -> None:
    with pytest.raises(TandemError):
        READERS[keyword](value, keyword, PLACE)


def test_few_remainders() -> None:
    assert are_few_remainders([])
    assert are_few_remainders([0.25, 3])
    assert not are_few_remainders([997, 991])
    assert not are_few_remainders([1e-15])


def test_formats_of_texts_are_named_if_they_have_no_effect() -> None:
    ignored: list[str] = []
    assert read_format("uuid", {"type": "string"}, PLACE, ignored) == "uuid"
    assert read_format("int64", {"type": "integer"}, PLACE, ignored) is DROPPED
    assert ignored == []
    assert read_format("iri", {}, PLACE / "items", ignored) is DROPPED
    assert ignored == ["/items: format"]
