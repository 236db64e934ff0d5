"""The columns of the running requests (Batch): one row per slot, updated for all of them at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.batch import Batch
from engine_core.block import Block
from engine_core.request import Request
from engine_core.waiting import WaitingQueue
from tests.fakes import make_core_request

BLOCK_SIZE = 4


def make_batch(max_num_seqs: int = 4, by_priority: bool = False) -> Batch:
    return Batch(max_num_seqs, WaitingQueue(by_priority).rank)


def with_blocks(request: Request, num_blocks: int = 1) -> Request:
    request.blocks = [[Block(block_id) for block_id in range(num_blocks)]]
    return request


def join(batch: Batch, handle: int, num_prompt: int, max_tokens: int = 8, num_computed: int = 0) -> Request:
    request = with_blocks(make_core_request(handle, [1] * num_prompt, max_tokens))
    batch.join(request, num_computed)
    return request


def test_a_request_that_joins_fills_its_row() -> None:
    batch = make_batch()
    request = with_blocks(make_core_request(7, [1, 2, 3], 9, resumed=[4, 5], logprobs=2), num_blocks=2)
    batch.join(request, 4)
    slot = request.slot
    assert slot is not None and batch.at(slot) is request
    columns = (
        batch.handles,
        batch.num_prompt,
        batch.num_computed,
        batch.sample_end,
        batch.max_tokens,
        batch.logprob_widths,
        batch.num_blocks,
        batch.num_sent_blocks,
    )
    assert [column[slot] for column in columns] == [7, 3, 4, 2, 9, 3, 2, 2]
    assert {column.dtype for column in columns} == {np.dtype(np.int32)}


@pytest.mark.parametrize(("logprobs", "width"), [(None, 0), (0, 1), (5, 6)])
def test_the_sampled_token_has_a_logprob_beside_the_top_ones(logprobs: int | None, width: int) -> None:
    batch = make_batch()
    request = with_blocks(make_core_request(0, [1], logprobs=logprobs))
    batch.join(request, 0)
    assert batch.logprob_widths[request.slot] == width


def test_the_running_are_ordered_by_rank_not_by_slot() -> None:
    batch = make_batch(by_priority=True)
    requests = [with_blocks(make_core_request(handle, [1])) for handle in range(4)]
    for request, priority in zip(requests, [1, 0, 1, -1], strict=True):
        request.priority = priority
        batch.join(request, 0)
    assert [request.handle for request in batch.running] == [3, 1, 0, 2]
    assert batch.slots.tolist() == [3, 1, 0, 2] and batch.is_full


def test_a_freed_slot_has_no_request_and_is_used_next() -> None:
    batch = make_batch()
    first, second = join(batch, 0, 3), join(batch, 1, 3)
    batch.leave(first)
    assert first.slot is None and batch.running == [second] and batch.slots.tolist() == [1]
    with pytest.raises(AssertionError, match="slot 0 is free"):
        batch.at(0)
    assert join(batch, 2, 3).slot == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(-1, 1), st.integers(0, 2)), max_size=40))
def test_slots_and_order_hold_over_random_joins_and_leaves(operations: list[tuple[bool, int, int, int]]) -> None:
    batch = make_batch(by_priority=True)
    for handle, (leaves, number, priority, arrival) in enumerate(operations):
        if leaves and batch.running:
            batch.leave(batch.running[number % len(batch.running)])
        elif not batch.is_full:
            request = with_blocks(make_core_request(handle, [1]))
            request.priority, request.arrival = priority, arrival
            batch.join(request, 0)
        ranks = [(request.priority, request.arrival, request.handle) for request in batch.running]
        assert ranks == sorted(ranks)
        assert batch.slots.tolist() == [request.slot for request in batch.running]
        assert [batch.at(slot) for slot in batch.slots.tolist()] == batch.running
        assert sorted([*batch.slots.tolist(), *batch.free_slots]) == [0, 1, 2, 3]


def test_each_request_computes_what_its_next_sample_needs_up_to_the_cap() -> None:
    batch = make_batch()
    join(batch, 0, 9)
    join(batch, 1, 9, num_computed=8)
    assert batch.num_new_tokens(0).tolist() == [9, 1]
    assert batch.num_new_tokens(4).tolist() == [4, 1]


def test_a_row_samples_once_its_known_tokens_are_computed() -> None:
    batch = make_batch()
    join(batch, 0, 9)
    join(batch, 1, 3)
    slots = batch.slots
    assert batch.advance(slots, np.array([5, 3], dtype=np.int32)).tolist() == [False, True]
    assert batch.sample_end[slots].tolist() == [0, 1]
    assert batch.advance(slots, np.array([4, 1], dtype=np.int32)).tolist() == [True, True]
    assert batch.num_computed[slots].tolist() == [9, 4] and batch.sample_end[slots].tolist() == [1, 2]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_the_last_token_is_sampled_and_never_computed(max_tokens: int) -> None:
    batch = make_batch()
    join(batch, 0, 3, max_tokens)
    sampled = 0
    while (num_new := batch.num_new_tokens(0)).any():
        sampled += int(batch.advance(batch.slots, num_new).sum())
    assert sampled == max_tokens
    assert batch.num_computed[batch.slots].tolist() == [3 + max_tokens - 1]
