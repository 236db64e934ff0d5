"""When a choice ends: end tokens, stop ids, min_tokens and max_tokens."""

from typing import Any

import pytest

from engine_core.request import SUSPECT_AT, Request, Stop, stop_at
from engine_core.step_plan import SamplingParams

END, STOP_ID, OTHER = 2, 30, 7


def request(output: list[int], **sampling: Any) -> Request:
    """A choice with a prompt of two tokens, the end token among them, and this output."""
    params = SamplingParams(**{"max_tokens": 9, "eos_token_ids": (END,), "stop_token_ids": (STOP_ID,), **sampling})
    return Request(1, params, 0, 0, [5, END, *output], 2, b"root")


def test_output_tokens() -> None:
    found = request([OTHER, END])
    assert (found.num_tokens, found.num_output_tokens, found.output_token_ids) == (4, 2, [OTHER, END])


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([], {}, None),
        ([OTHER], {}, None),
        ([OTHER, END], {}, Stop("stop")),
        ([OTHER, STOP_ID], {}, Stop("stop", STOP_ID)),
        ([OTHER, END], {"ignore_eos": True}, None),
        ([OTHER, STOP_ID], {"ignore_eos": True}, Stop("stop", STOP_ID)),
        ([OTHER, END], {"min_tokens": 2}, None),
        ([OTHER, END], {"min_tokens": 1}, Stop("stop")),
        ([OTHER, STOP_ID], {"min_tokens": 2}, None),
        ([OTHER] * 9, {}, Stop("length")),
        ([*[OTHER] * 8, END], {}, Stop("stop")),
        ([*[OTHER] * 8, END], {"min_tokens": 9}, Stop("length")),
    ],
)
def test_the_end_of_a_choice(output: list[int], sampling: dict[str, Any], expected: Stop | None) -> None:
    assert stop_at(request(output, **sampling), len(output)) == expected


def test_an_earlier_token_is_judged_by_its_own_place() -> None:
    found = request([END, OTHER, OTHER])
    assert [stop_at(found, count) for count in range(4)] == [None, Stop("stop"), None, None]


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([OTHER], {}, None),
        ([OTHER, OTHER], {}, Stop("stop")),
        ([OTHER, STOP_ID], {}, Stop("stop", STOP_ID)),
        ([OTHER, END], {"ignore_eos": True}, Stop("stop")),
        ([OTHER, OTHER], {"max_tokens": 2, "min_tokens": 2}, Stop("stop")),
    ],
)
def test_a_complete_grammar_ends_a_choice(output: list[int], sampling: dict[str, Any], expected: Stop | None) -> None:
    found = request(output, **sampling)
    found.completed_at = 2
    assert stop_at(found, len(output)) == expected


def test_a_suspect_has_two_strikes() -> None:
    found = request([])
    assert not found.is_suspect
    found.strikes = SUSPECT_AT
    assert found.is_suspect
