"""Plans as diffs: numbers, what is sent once, and new requests in full."""

import numpy as np

from engine_core.batch import Batch
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.step_plan import unpack_i32
from tests.fakes import make_core_request


def joined(batch: Batch, request: Request) -> Request:
    kv = KVCacheManager(8, 4, (FULL,), prefix_caching=False)
    assert kv.allocate(request, kv.find_cached(request), request.num_tokens, 0)
    batch.join(request, 0)
    return request


def make_batch() -> Batch:
    return Batch(4, lambda request: (0, request.handle))


def test_the_first_plan_has_no_base_and_the_next_one_has() -> None:
    batch, builder = make_batch(), PlanBuilder(7, 1)
    request = joined(batch, make_core_request(3, [1, 2, 3, 4, 5]))
    slots = np.array([request.slot], dtype=np.int32)
    first = builder.build(batch, slots, np.array([5], dtype=np.int32), [request])
    second = builder.build(batch, slots, np.array([1], dtype=np.int32), [])
    assert (first.epoch, first.step_id, first.base_step_id) == (7, 1, None)
    assert (second.step_id, second.base_step_id, second.new_requests) == (2, 1, [])
    (new,) = first.new_requests
    assert (new.handle, new.slot, len(unpack_i32(new.block_ids[0]))) == (3, request.slot, 2)
    assert unpack_i32(new.prompt_token_ids).tolist() == [1, 2, 3, 4, 5]
    assert unpack_i32(first.sampled).tolist() == [1] and unpack_i32(second.output_indices).tolist() == [1]


def test_a_request_with_a_grammar_says_so() -> None:
    batch, builder = make_batch(), PlanBuilder(1, 1)
    requests = [joined(batch, make_core_request(0, [1])), joined(batch, make_core_request(1, [1], grammar="2"))]
    slots = np.array([request.slot for request in requests], dtype=np.int32)
    plan = builder.build(batch, slots, np.ones(2, dtype=np.int32), requests)
    assert [new.has_grammar for new in plan.new_requests] == [False, True]


def test_released_slots_and_dropped_grammars_are_sent_once() -> None:
    batch, builder = make_batch(), PlanBuilder(1, 1)
    builder.released_slots.append(2)
    builder.dropped_grammars.append(9)
    request = joined(batch, make_core_request(3, [1]))
    slots, ones = np.array([request.slot], dtype=np.int32), np.ones(1, dtype=np.int32)
    first, second = builder.build(batch, slots, ones, [request]), builder.build(batch, slots, ones, [])
    assert (first.released_slots, first.dropped_grammars) == ([2], [9])
    assert (second.released_slots, second.dropped_grammars) == ([], [])


def test_rows_with_one_token_come_first_and_all_columns_follow() -> None:
    """Their own order stays, as does that of the others."""
    batch, builder = make_batch(), PlanBuilder(1, 1)
    requests = [joined(batch, make_core_request(handle, [1, 2, 3, 4, 5, 6])) for handle in range(4)]
    slots = np.array([request.slot for request in requests], dtype=np.int32)
    builder.build(batch, slots, np.array([2, 5, 4, 5], dtype=np.int32), requests)
    plan = builder.build(batch, slots, np.array([3, 1, 2, 1], dtype=np.int32), [])
    assert unpack_i32(plan.slots).tolist() == slots[[1, 3, 0, 2]].tolist()
    assert unpack_i32(plan.num_new_tokens).tolist() == [1, 1, 3, 2]
    assert unpack_i32(plan.num_computed_tokens).tolist() == [5, 5, 2, 4]
    assert unpack_i32(plan.sampled).tolist() == [1, 1, 0, 1]
