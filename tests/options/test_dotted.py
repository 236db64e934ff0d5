"""Dotted flags become keys of one flag with a JSON object."""

import json

import pytest

from services.options.dotted import joined
from services.options.setting import UsageError

FLAG = "--over"


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--over.a", "1"], {"a": 1}),
        (["--over.a=b", "--over.c=true", "--over.d=[1]"], {"a": "b", "c": True, "d": [1]}),
        (["--over.a.b=1", "--over.a.c=2"], {"a": {"b": 1, "c": 2}}),
        (["--over.some-key=x=y"], {"some_key": "x=y"}),
        (["--over", '{"a": 1, "b": 2}', "--over.a=3"], {"a": 3, "b": 2}),
        (["--over.a=3", '--over={"a": 1}'], {"a": 3}),
        (['--over={"a": {"b": 1}}', "--over.a.c=2"], {"a": {"b": 1, "c": 2}}),
        (['--over={"a": 5}', "--over.a.c=2"], {"a": {"c": 2}}),
    ],
)
def test_they_are_joined(argv: list[str], value: object) -> None:
    *rest, last = joined([*argv, "--port=1", "model"], [FLAG])
    assert rest == ["--port=1", "model"]
    flag, _, text = last.partition("=")
    assert flag == FLAG and json.loads(text) == value


@pytest.mark.parametrize("argv", [[], ["--port.a=1"], ["--over", "{}"], ["--over={}"], ["model", "-h"]])
def test_other_words_stay_as_they_are(argv: list[str]) -> None:
    assert joined(argv, [FLAG]) == argv


@pytest.mark.parametrize("argv", [["--over.a"], ["--over=[]", "--over.a=1"], ["--over=x", "--over.a=1"]])
def test_what_cannot_be_joined_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="^--over"):
        joined(argv, [FLAG])
