"""A body has the fields of its form, some of them in an object; errors name the path."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.errors import TandemError, invalid
from services.shim.apis.body_form import BodyForm
from services.shim.body import Body

FORM = BodyForm(frozenset({"a", "b"}), "inner", frozenset({"c", "d"}), "More.")
PLAIN = BodyForm(frozenset({"a", "b"}))


def body_of(fields: Any) -> Body:
    return Body(msgspec.json.encode(fields))


def shaped(form: BodyForm, fields: Any, *, ignoring: bool = False) -> Body:
    body = body_of(fields)
    form.shape(body, ignore_unknown_fields=ignoring)
    return body


def refused(form: BodyForm, fields: Any) -> TandemError:
    with pytest.raises(TandemError) as caught:
        shaped(form, fields)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value


def test_fields_of_the_object_stand_beside_the_others() -> None:
    body = shaped(FORM, {"a": 1, "inner": {"c": {"x": [1]}, "d": None}})
    assert body.fields == {"a": 1, "c": {"x": [1]}}
    assert body.json("c", "x") == b"[1]"
    assert shaped(FORM, {"a": 1, "inner": None}).fields == {"a": 1}
    assert shaped(PLAIN, {"a": 1}).fields == {"a": 1}


@pytest.mark.parametrize(
    ("form", "fields", "param"),
    [
        (FORM, {"c": 1}, "c"),
        (FORM, {"inner": {"a": 1}}, "inner.a"),
        (FORM, {"inner": {"inner": 1}}, "inner.inner"),
        (FORM, {"": 1}, ""),
        (PLAIN, {"": 1}, ""),
        (PLAIN, {"inner": {}}, "inner"),
        (PLAIN, {"c": 1}, "c"),
    ],
)
def test_other_fields_are_refused_or_ignored(form: BodyForm, fields: Any, param: str) -> None:
    error = refused(form, fields)
    assert (error.message, error.param) == (f"unsupported parameter: {param}", param)
    assert shaped(form, fields, ignoring=True).fields == {}


@pytest.mark.parametrize("value", [5, "a", [], [{}], True])
def test_the_object_must_be_one(value: Any) -> None:
    error = refused(FORM, {"inner": value})
    assert (error.message, error.param) == ("inner: Input should be an object", "inner")


@given(st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers()), st.booleans())
def test_every_field_is_kept_or_refused(fields: dict[str, Any], nested: bool) -> None:
    """None is lost, none is in the wrong place, whatever the order."""
    given_fields = {"inner": fields} if nested else fields
    there = {name: value for name, value in fields.items() if value is not None}
    allowed = FORM.inner_names if nested else FORM.names
    if there.keys() <= allowed:
        assert shaped(FORM, given_fields).fields == there
    else:
        assert refused(FORM, given_fields).param.rpartition(".")[2] in there.keys() - allowed


def test_an_errors_path() -> None:
    for param, expected in (("c", "inner.c"), ("c.0.x", "inner.c.0.x"), ("a", "a"), ("", ""), ("inner.c", "inner.c")):
        assert FORM.located(invalid("wrong", param)).param == expected
    assert PLAIN.located(invalid("wrong", "c")).param == "c"


def test_the_schema() -> None:
    whole = {
        "title": "T",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"type": "integer"} for name in "abcde"},
        "required": ["a", "c", "e"],
    }
    found = FORM.schema(whole)
    assert found["properties"].keys() == {"a", "b", "inner"} and found["required"] == ["a"]
    inner = found["properties"]["inner"]
    assert inner["properties"].keys() == {"c", "d"} and inner["required"] == ["c"]
    assert (inner["additionalProperties"], inner["description"], inner["x-tandem"]) == (False, "More.", "supported")
    assert "required" not in BodyForm(frozenset({"b"})).schema(whole)
