"""A prompt is shortened to what the request or the context length allows; shortening it again changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.tokenizer.truncation import longest_prompt, truncated


def submit(longest: int | None, max_tokens: int | None = None) -> text_pb2.TextSubmit:
    truncation = text_pb2.Truncation(max_tokens=longest)
    return text_pb2.TextSubmit(truncation=truncation, sampling=pb.SamplingParams(max_tokens=max_tokens))


@pytest.mark.parametrize(
    ("longest", "max_tokens", "expected"),
    [(5, None, 5), (5, 60, 5), (None, None, 63), (None, 10, 54), (None, 63, 1), (None, 64, 1), (None, 100, 1)],
)
def test_the_answer_keeps_its_room(longest: int | None, max_tokens: int | None, expected: int) -> None:
    assert longest_prompt(submit(longest, max_tokens), 64) == expected


def test_a_request_that_does_not_ask_for_it_is_not_shortened() -> None:
    assert longest_prompt(text_pb2.TextSubmit(), 64) is None
    assert truncated([1, 2, 3], None, drop_end=False) == [1, 2, 3]


def test_either_end_is_dropped() -> None:
    assert truncated([1, 2, 3], 2, drop_end=False) == [2, 3]
    assert truncated([1, 2, 3], 2, drop_end=True) == [1, 2]
    assert truncated([1, 2, 3], 0, drop_end=False) == truncated([1, 2, 3], 0, drop_end=True) == []


@given(st.lists(st.integers(0, 9)), st.integers(0, 12), st.booleans())
def test_shortening_again_changes_nothing(ids: list[int], longest: int, drop_end: bool) -> None:
    once = truncated(ids, longest, drop_end=drop_end)
    assert len(once) == min(len(ids), longest)
    assert truncated(once, longest, drop_end=drop_end) == once
