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
    *words, port, model = joined([*argv, "--port=1", "model"], [FLAG])
    assert [port, model] == ["--port=1", "model"]
    assert words and len(set(words)) == 1
    flag, _, text = words[0].partition("=")
    assert flag == FLAG and json.loads(text) == value


def test_each_of_them_stays_in_its_place() -> None:
    """Else `model` would become a name."""
    argv = ["--over.a=1", "--names", "x", "--over.b", "2", "model"]
    over = '--over={"a": 1, "b": 2}'
    assert joined(argv, [FLAG]) == [over, "--names", "x", over, "model"]


@pytest.mark.parametrize("argv", [[], ["--port.a=1"], ["--over", "{}"], ["--over={}"], ["model", "-h"]])
def test_other_words_stay_as_they_are(argv: list[str]) -> None:
    assert joined(argv, [FLAG]) == argv


@pytest.mark.parametrize(
    "argv", [["--over.a"], ["--over=[]", "--over.a=1"], ["--over=x", "--over.a=1"], ["--over=", "--over.a=1"]]
)
def test_what_cannot_be_joined_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="^--over"):
        joined(argv, [FLAG])
