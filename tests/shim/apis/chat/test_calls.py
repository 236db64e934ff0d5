"""Calls from pieces: whole, in deltas, and in the older form. Deltas put together are the whole call."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.pieces import (
    CONTENT,
    REASONING,
    TOOL_ARGUMENTS,
    TOOL_CALL,
    TOOL_CALL_END,
    TOOL_NAME,
    Piece,
    add_pieces,
)
from services.shim.apis.chat.calls import FunctionCall, StreamedCalls, ToolCalls, calls_of

TWO: list[Piece] = [
    (REASONING, "hm"),
    (TOOL_CALL, "call_1"),
    (TOOL_NAME, "f"),
    (TOOL_ARGUMENTS, '{"a": '),
    (TOOL_ARGUMENTS, "1}"),
    (TOOL_CALL_END, ""),
    (CONTENT, "and"),
    (TOOL_CALL, "call_2"),
    (TOOL_NAME, "g"),
    (TOOL_CALL_END, ""),
]


def test_calls() -> None:
    first = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    second = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}}
    assert calls_of(TWO) == [first, second]
    assert calls_of(TWO[:4])[0]["function"]["arguments"] == '{"a": ', "a call that the end cut off"
    assert calls_of([(CONTENT, "a"), (REASONING, "b")]) == []


def test_deltas() -> None:
    streamed = StreamedCalls(ToolCalls())
    assert [delta for piece in TWO if (delta := streamed.delta(piece))] == [
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
    ]


def test_the_older_form() -> None:
    streamed = StreamedCalls(FunctionCall())
    assert [delta for piece in TWO[:6] if (delta := streamed.delta(piece))] == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a": '}},
        {"function_call": {"arguments": "1}"}},
    ]
    assert FunctionCall().in_message(calls_of(TWO[:6])) == {"function_call": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize("form", [ToolCalls(), FunctionCall()])
def test_a_message_without_calls_has_no_field_of_them(form: Any) -> None:
    assert form.in_message([]) == {}


CALLS = st.lists(
    st.tuples(st.text(min_size=1), st.text(min_size=1), st.lists(st.text(min_size=1)), st.booleans()), max_size=4
)


@given(CALLS, st.text())
def test_deltas_put_together_are_the_calls(calls: list[tuple[str, str, list[str], bool]], between: str) -> None:
    """Whatever was merged before, and whether the calls have their end or not."""
    pieces: list[Piece] = []
    for call_id, name, parts, whole in calls:
        pieces += [(TOOL_CALL, call_id), (TOOL_NAME, name), *((TOOL_ARGUMENTS, part) for part in parts)]
        pieces += [(TOOL_CALL_END, "")] if whole else []
        pieces += [(CONTENT, between)] if between else []
    merged: list[Piece] = []
    add_pieces(merged, pieces)
    streamed = StreamedCalls(ToolCalls())
    found: list[dict[str, Any]] = []
    for delta in filter(None, map(streamed.delta, pieces)):
        (part,) = delta["tool_calls"]
        index = part.pop("index")
        if index == len(found):
            found.append(part)
        else:
            assert part.keys() == {"function"} and part["function"].keys() == {"arguments"}
            found[index]["function"]["arguments"] += part["function"]["arguments"]
    assert found == calls_of(pieces) == calls_of(merged)
    assert [one["function"]["name"] for one in found] == [name for _, name, _, _ in calls]
