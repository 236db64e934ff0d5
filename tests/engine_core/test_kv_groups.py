"""What a window keeps, beside a simulation of each step; how many tokens a cache has room for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.kv_groups import FULL, MAX_TOKENS, KvGroup, SlidingWindow, capacity_tokens, first_block, most_blocks

SIZES = st.integers(1, 40)


@given(size=SIZES, block_size=st.integers(1, 9), num_tokens=st.integers(1, 120), steps=st.data())
def test_no_request_holds_more_blocks_than_were_counted(
    size: int, block_size: int, num_tokens: int, steps: st.DataObject
) -> None:
    """Block by block: those with a token that the step reads or writes."""
    longest = steps.draw(st.integers(1, 50))
    window = SlidingWindow(size, longest)
    computed = start = steps.draw(st.integers(0, num_tokens - 1))
    most = 0
    while computed < num_tokens:
        end = min(num_tokens, computed + steps.draw(st.integers(1, longest)))
        held = {token // block_size for token in range(max(0, computed - size + 1), end)}
        assert min(held) == first_block(window, computed, block_size)
        most, computed = max(most, len(held)), end
    assert most <= window.most_blocks(start, num_tokens, block_size)


@given(size=SIZES, block_size=st.integers(1, 9), index=st.integers(0, 20))
def test_a_block_is_due_when_the_next_token_reads_only_later_ones(size: int, block_size: int, index: int) -> None:
    window = SlidingWindow(size, 8)
    due = window.give_back_at(index, block_size)
    assert first_block(window, due, block_size) == index + 1
    assert first_block(window, due - 1, block_size) == index


def test_without_a_window_all_blocks_are_kept() -> None:
    assert FULL.keeps_all and not FULL.window and not SlidingWindow(5, 8).keeps_all
    assert first_block(FULL, 1000, 4) == 0 and FULL.give_back_at(0, 4) == MAX_TOKENS
    assert FULL.most_blocks(0, 9, 4) == 3


def test_columns_give_what_single_requests_give() -> None:
    computed, tokens = np.array([0, 5, 30], dtype=np.int32), np.array([40, 40, 31], dtype=np.int32)
    for group in (FULL, SlidingWindow(6, 8)):
        found = group.most_blocks(computed, tokens, 4)
        assert found.tolist() == [group.most_blocks(*pair, 4) for pair in zip([0, 5, 30], [40, 40, 31], strict=True)]


@pytest.mark.parametrize("groups", [(FULL,), (FULL, FULL), (FULL, SlidingWindow(6, 8)), (SlidingWindow(30, 8),)])
@pytest.mark.parametrize("num_blocks", [1, 2, 7, 8, 9, 40])
def test_capacity_is_the_most_that_fits(groups: tuple[KvGroup, ...], num_blocks: int) -> None:
    capacity = capacity_tokens(groups, num_blocks, 4)
    assert capacity == 0 or most_blocks(groups, 0, capacity, 4) <= num_blocks
    assert capacity == MAX_TOKENS or most_blocks(groups, 0, capacity + 1, 4) > num_blocks


@pytest.mark.parametrize(("size", "step"), [(0, 8), (8, 0), (2**31, 8)])
def test_a_window_out_of_range_is_refused(size: int, step: int) -> None:
    with pytest.raises(ValueError, match="of a window is .*, but must be from 1 to 2147483647"):
        SlidingWindow(size, step)
