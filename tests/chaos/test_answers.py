"""A part of an answer that the client gave up must be how the whole one begins."""

from typing import Any

import pytest

from tests.chaos.answers import begins

WHOLE: dict[str, Any] = {
    "text": "abc",
    "token_ids": [1, 2, 3],
    "tool_calls": [{"id": "x", "function": {"arguments": '{"to": [1]}'}}],
    "finish_reason": "length",
}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({}, True),
        (WHOLE, True),
        ({"text": "ab", "token_ids": [1, 2], "finish_reason": None}, True),
        ({"tool_calls": [{"id": "x", "function": {"arguments": '{"to"'}}]}, True),
        ({"text": "b"}, False),
        ({"token_ids": [1, 3]}, False),
        ({"token_ids": [1, 2, 3, 4]}, False),
        ({"tool_calls": [{"id": "y"}]}, False),
        ({"reasoning": "a"}, False),
        ({"finish_reason": "stop"}, False),
    ],
)
def test_begins(part: Any, expected: bool) -> None:
    assert begins(part, WHOLE) is expected
