"""The scheduler's rules, one by one: budget, chunks, prefix hits, preemption, stopping, stale results."""

from typing import Any

import pytest

from engine_core.events import Finished
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request, Stop
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import unpack_i32
from tests.fakes import FakeWorker, make_core_request, make_facts, make_result, oracle


def make_scheduler(
    num_blocks: int = 64, max_num_seqs: int = 8, budget: int = 64, prefix_caching: bool = True, **limits: Any
) -> tuple[Scheduler, FakeWorker]:
    facts = make_facts(num_blocks=num_blocks)
    kv = KVCacheManager(num_blocks, facts.block_size, (FULL,), prefix_caching)
    return Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(max_num_seqs, budget, **limits)), FakeWorker(facts)


def run(scheduler: Scheduler, worker: FakeWorker) -> tuple[dict[int, list[int]], dict[int, Finished]]:
    """Runs steps until every request has ended. Returns outputs and terminal events by handle."""
    outputs: dict[int, list[int]] = {}
    finished: dict[int, Finished] = {}
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        events = scheduler.update(worker.execute(plan))
        for tokens in events.new_tokens:
            outputs.setdefault(tokens.handle, []).extend(tokens.token_ids)
        finished |= {one.handle: one for one in events.finished}
    return outputs, finished


def add_all(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        assert scheduler.add(request) is None


def test_the_budget_is_shared_in_order_of_arrival() -> None:
    facts = make_facts(num_blocks=1024, max_model_len=1024)
    kv = KVCacheManager(1024, facts.block_size, (FULL,), prefix_caching=False)
    scheduler = Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(8, 1024))
    add_all(scheduler, *(make_core_request(h, [h + 1] * 800, 4, facts) for h in range(3)))
    plan = scheduler.schedule()
    assert plan is not None
    assert unpack_i32(plan.num_new_tokens).tolist() == [800, 224]
    assert unpack_i32(plan.sampled).tolist() == [1, 0]
    scheduler.update(make_result(plan, [(0, 0, 7)]))
    plan = scheduler.schedule()
    assert plan is not None
    assert unpack_i32(plan.num_new_tokens).tolist() == [1, 576, 447]


@pytest.mark.parametrize(
    ("limits", "shared", "steps"),
    [
        ({}, 0, [[800, 224], [1, 576, 447], [1, 1, 353]]),
        ({"long_prefill_token_threshold": 400}, 0, [[400, 400, 224], [400, 400, 224], [1, 1, 352]]),
        # The second and third find 700 tokens of the first one, which the same step computes.
        ({}, 700, [[800, 100, 100], [1, 1, 1]]),
    ],
)
def test_three_prompts_of_800_share_steps_of_1024(limits: dict[str, int], shared: int, steps: list[list[int]]) -> None:
    facts = make_facts(num_blocks=1024, max_model_len=1024)
    scheduler, worker = make_scheduler(num_blocks=1024, budget=1024, **limits)
    add_all(scheduler, *(make_core_request(h, [7] * shared + [h] * (800 - shared), 4, facts) for h in range(3)))
    found = []
    for _ in steps:
        plan = scheduler.schedule()
        assert plan is not None
        found.append(unpack_i32(plan.num_new_tokens).tolist())
        scheduler.update(worker.execute(plan))
    assert found == steps


@pytest.mark.parametrize("num_prompt", [1, 60, 63])
def test_an_answer_may_fill_the_model_to_its_last_token(num_prompt: int) -> None:
    """The KV of that token is never computed, so it needs no slot in a block."""
    facts = make_facts(num_blocks=16, max_model_len=64)
    scheduler, worker = make_scheduler(num_blocks=16)
    prompt = [one % 7 + 1 for one in range(num_prompt)]
    add_all(scheduler, make_core_request(0, prompt, 64 - num_prompt, facts))
    outputs, finished = run(scheduler, worker)
    assert outputs[0] == oracle(prompt, 64 - num_prompt)
    assert finished[0].stop.reason == "length" and sum(worker.step_tokens) == 63


def test_a_stop_token_at_max_tokens_is_a_stop() -> None:
    prompt, expected = [7, 9], oracle([7, 9], 3)
    assert expected[2] not in expected[:2]
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, prompt, 3, eos_token_ids=(expected[2],)))
    _, finished = run(scheduler, worker)
    assert finished[0].stop.reason == "stop"


def test_an_ignored_end_token_ends_nothing_and_a_stop_token_does() -> None:
    prompt, expected = [7, 9], oracle([7, 9], 3)
    assert expected[1] not in (expected[0], expected[2])
    scheduler, worker = make_scheduler()
    ends = {"eos_token_ids": (expected[1],), "ignore_eos": True}
    add_all(scheduler, make_core_request(0, prompt, 3, **ends))
    add_all(scheduler, make_core_request(1, prompt, 3, **ends, stop_token_ids=(expected[1],)))
    outputs, finished = run(scheduler, worker)
    assert outputs == {0: expected, 1: expected[:2]}
    assert (finished[0].stop.reason, finished[1].stop.stop_token_id) == ("length", expected[1])


def test_a_request_without_enough_blocks_takes_none_of_the_cached_ones() -> None:
    """Its hits stay free, and keep their places in the order of eviction."""
    scheduler, worker = make_scheduler(num_blocks=8, max_num_seqs=2)
    old, other = list(range(1, 10)), list(range(20, 31))
    add_all(scheduler, make_core_request(0, old, 1))
    run(scheduler, worker)
    add_all(scheduler, make_core_request(1, other, 9), make_core_request(2, [*old, *range(31, 43)], 1))
    plan = scheduler.schedule()
    assert plan is not None and [request.handle for request in scheduler.running] == [1]
    pool = scheduler.kv.pool
    free = [block.block_id for block in pool._free]
    scheduler.update(worker.execute(plan))
    assert scheduler.schedule() is not None and [block.block_id for block in pool._free] == free
    assert sum(block.key is not None for block in pool._free) > 0
    pool.check()


def test_a_prompt_is_cut_into_chunks_and_the_answer_is_the_same() -> None:
    scheduler, worker = make_scheduler(budget=8)
    prompt = list(range(1, 30))
    add_all(scheduler, make_core_request(0, prompt, 6))
    outputs, _ = run(scheduler, worker)
    assert outputs[0] == oracle(prompt, 6)
    assert scheduler.counters.chunked_rows == 3
    assert max(worker.step_tokens) == 8


def test_a_known_prefix_is_not_computed_again() -> None:
    scheduler, worker = make_scheduler()
    prompt = list(range(1, 18))
    add_all(scheduler, make_core_request(0, prompt, 4))
    run(scheduler, worker)
    add_all(scheduler, make_core_request(1, prompt, 4))
    outputs, finished = run(scheduler, worker)
    assert outputs[1] == oracle(prompt, 4)
    assert finished[1].num_cached_tokens == 16
    assert scheduler.counters.prefix_cache_hits == 16


def test_the_last_token_is_always_computed() -> None:
    """A prompt of whole blocks that is known entirely still needs its last logits."""
    scheduler, worker = make_scheduler()
    prompt = list(range(1, 17))
    add_all(scheduler, make_core_request(0, prompt, 1))
    run(scheduler, worker)
    add_all(scheduler, make_core_request(1, prompt, 1))
    _, finished = run(scheduler, worker)
    assert finished[1].num_cached_tokens == 12


@pytest.mark.parametrize("field", ["cache_salt", "cache_group"])
def test_a_salt_or_a_group_separates_caches(field: str) -> None:
    scheduler, worker = make_scheduler()
    first, other, again = (
        make_core_request(handle, list(range(1, 18)), 2, **{field: value})  # type: ignore[arg-type]
        for handle, value in enumerate("aba")
    )
    add_all(scheduler, first)
    run(scheduler, worker)
    add_all(scheduler, other, again)
    _, finished = run(scheduler, worker)
    assert finished[1].num_cached_tokens == 0
    assert finished[2].num_cached_tokens == 16
    assert not set(first.block_hashes) & set(other.block_hashes), "no block is shared"
    assert first.block_hashes[:4] == again.block_hashes[:4]


def test_without_prefix_caching_nothing_is_found() -> None:
    scheduler, worker = make_scheduler(prefix_caching=False)
    for handle in range(2):
        add_all(scheduler, make_core_request(handle, list(range(1, 18)), 2))
        run(scheduler, worker)
    assert scheduler.counters.prefix_cache_hits == 0


def test_when_blocks_run_out_the_youngest_is_preempted_and_resumes() -> None:
    scheduler, worker = make_scheduler(num_blocks=8, prefix_caching=False)
    prompts = {0: [1, 2, 3], 1: [4, 5, 6]}
    add_all(scheduler, *(make_core_request(handle, prompt, 20) for handle, prompt in prompts.items()))
    order: list[int] = []
    outputs: dict[int, list[int]] = {0: [], 1: []}
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        events = scheduler.update(worker.execute(plan))
        for tokens in events.new_tokens:
            outputs[tokens.handle] += tokens.token_ids
        order += [one.handle for one in events.finished]
    assert scheduler.counters.preemptions > 0
    assert order == [0, 1], "the older one was not the victim"
    assert outputs == {handle: oracle(prompt, 20) for handle, prompt in prompts.items()}


def test_a_preempted_request_counts_its_cached_tokens_once() -> None:
    scheduler, worker = make_scheduler(num_blocks=8)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 20), make_core_request(1, [4, 5, 6], 20))
    _, finished = run(scheduler, worker)
    assert scheduler.counters.preemptions > 0
    assert {one.num_cached_tokens for one in finished.values()} == {0}
    assert (scheduler.counters.prefix_cache_queries, scheduler.counters.prefix_cache_hits) == (6, 0)


def test_the_cached_blocks_of_a_request_are_not_evicted_for_its_new_ones() -> None:
    """Its cached blocks are the least recently used ones: taking new blocks must not evict them."""
    scheduler, worker = make_scheduler(num_blocks=8)
    prompt = list(range(1, 18))
    add_all(scheduler, make_core_request(0, prompt, 1))
    run(scheduler, worker)
    longer = [*prompt[:16], *range(20, 32)]
    add_all(scheduler, make_core_request(1, longer, 4))
    outputs, finished = run(scheduler, worker)
    assert finished[1].num_cached_tokens == 16
    assert outputs[1] == oracle(longer, 4)


def test_two_equal_prompts_at_once_share_what_the_first_computes() -> None:
    scheduler, worker = make_scheduler()
    prompt = list(range(1, 18))
    add_all(scheduler, make_core_request(0, prompt, 5), make_core_request(1, prompt, 5))
    outputs, _ = run(scheduler, worker)
    assert outputs[0] == outputs[1] == oracle(prompt, 5)
    assert scheduler.counters.prefix_cache_hits == 16


@pytest.mark.parametrize("kind", ["eos", "stop_token_ids"])
def test_min_tokens_delays_every_stop(kind: str) -> None:
    prompt, expected = [7, 9], oracle([7, 9], 12)
    stop_id = expected[2]
    stops = {"eos_token_ids" if kind == "eos" else "stop_token_ids": (stop_id,)}
    assert stop_id not in expected[:2] and stop_id not in expected[3:]
    for min_tokens, length in ((0, 3), (2, 3), (3, 12)):
        scheduler, worker = make_scheduler()
        add_all(scheduler, make_core_request(0, prompt, 12, min_tokens=min_tokens, **stops))
        outputs, finished = run(scheduler, worker)
        assert len(outputs[0]) == length
        assert finished[0].stop.reason == ("stop" if length == 3 else "length")
        if length == 3:
            assert finished[0].stop.stop_token_id == (None if kind == "eos" else stop_id)


def test_a_stale_result_changes_nothing() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6))
    first = scheduler.schedule()
    assert first is not None
    result = worker.execute(first)
    scheduler.update(result)
    events = scheduler.update(result)  # the same again: its start_index is not the next one
    assert events.new_tokens == [] and events.finished == []
    outputs, _ = run(scheduler, worker)
    assert oracle([1, 2, 3], 6)[1:] == outputs[0]


def test_an_abort_between_plan_and_result_drops_the_result() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6), make_core_request(1, [4, 5], 6))
    plan = scheduler.schedule()
    assert plan is not None
    result = worker.execute(plan)
    finished = scheduler.abort(0)
    assert finished is not None and finished.stop.reason == "abort"
    events = scheduler.update(result)
    assert [tokens.handle for tokens in events.new_tokens] == [1]


@pytest.mark.parametrize(
    ("causes", "param"), [([], ""), ([""], ""), (["penalty_overflow"], "repetition_penalty"), (["a newer one"], "")]
)
def test_an_error_of_one_row_ends_that_request_alone(causes: list[str], param: str) -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6), make_core_request(1, [4, 5], 6))
    plan = scheduler.schedule()
    assert plan is not None
    result = worker.execute(plan)
    result.errors, result.error_causes = [(0, "not a number")], causes
    result.handles, result.start_indices, result.counts, result.logprob_widths = (
        column[4:] for column in (result.handles, result.start_indices, result.counts, result.logprob_widths)
    )
    result.token_ids = result.token_ids[4:]
    events = scheduler.update(result)
    assert [(one.handle, one.stop) for one in events.finished] == [(0, Stop("error", None, "not a number", param))]
    outputs, _ = run(scheduler, worker)
    assert oracle([4, 5], 6)[1:] == outputs[1]


@pytest.mark.parametrize("count", range(7))
def test_resumed_tokens_count_as_generated(count: int) -> None:
    prompt, expected = [1, 2, 3, 4, 5], oracle([1, 2, 3, 4, 5], 6)
    scheduler, worker = make_scheduler()
    finished = scheduler.add(make_core_request(0, prompt, 6, resumed=expected[:count]))
    if count == 6:
        assert finished is not None and finished.stop.reason == "length" and finished.num_output_tokens == 6
        assert scheduler.schedule() is None, "no step is needed"
        return
    outputs, ended = run(scheduler, worker)
    assert expected[:count] + outputs[0] == expected
    assert ended[0].num_output_tokens == 6


def test_a_budget_below_the_number_of_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=7)
