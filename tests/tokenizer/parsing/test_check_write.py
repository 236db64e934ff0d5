"""A table that says wrongly how calls are written is refused, with the place."""

from typing import Any

import pytest

from services.tokenizer.parsing.read_table import table_of

CALL = {"call": "<c>$name $arguments</c>"}
TAGS = {"call": "<c>$name\n$parameters</c>", "parameter": "<k>$key<v>$value\n</v>"}


def table(write: Any, **fields: Any) -> Any:
    states = {
        "content": {"read": "content", "on": {"open": "name"}},
        "name": {"read": "name", "on": {"key": {"to": "key", "do": ["call"]}, "close": "content"}},
        "key": {"read": "name", "on": {"value": {"to": "value", "do": ["key"]}}},
        "value": {"read": "value", "on": {"end": {"to": "after", "do": ["value"]}}},
        "after": {"read": "layout", "on": {"key": "key", "close": {"to": "content", "do": ["end"]}}},
    }
    markers = {"open": "<c>", "close": "</c>", "key": "<k>", "value": "<v>", "end": "</v>"}
    return {"tools": ["t"], "markers": markers, "states": states, "write": write, **fields}


def test_parameters_may_be_written() -> None:
    assert table_of(table(TAGS)).ways_to_write[0].parameter == TAGS["parameter"]
    assert len(table_of(table([{**CALL, "needs": ["<c>"]}, CALL])).ways_to_write) == 2


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ({"call": "<c>$arguments"}, r"write.call: it has no \$name"),
        ({"call": "<c>$name"}, r"write.call: it has neither or both of \$arguments and \$parameters"),
        ({"call": "<c>$arguments$name"}, "write.call: the name comes first"),
        ({**CALL, "between": "$name"}, r"write.between: \$name cannot stand there"),
        ({"call": "<c>$name$name$arguments"}, r"write.call: \$name cannot stand there, or stands there twice"),
        ({"call": "<c>$name$parameters"}, r"write.parameter: it goes with \$parameters"),
        ({**TAGS, "arguments": "python"}, "write.arguments: they are written as parameters"),
        ({**TAGS, "parameter": "<v>$value</v>"}, r"write.parameter: it needs \$key, and \$value behind it"),
        (
            {**TAGS, "parameter": "<k>$key<v>$value</c>"},
            r"write.parameter: no marker that ends a value follows \$value",
        ),
        ({"call": "call $name $arguments"}, "write: no marker of the state content is what the calls begin with"),
        ([CALL, {**CALL, "first": "</v>"}], r"write\[1\]: no marker of the state content"),
    ],
)
def test_what_is_wrong_is_refused(write: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table_of(table(write))


def test_a_format_of_reasoning_writes_no_calls() -> None:
    states = {"content": {"read": "content", "on": {"open": "reasoning"}}, "reasoning": {"read": "reasoning"}}
    data = {"reasoning": ["r"], "markers": {"open": "<c>"}, "states": states, "write": CALL}
    with pytest.raises(ValueError, match="write: calls need a name in `tools`"):
        table_of(data)
