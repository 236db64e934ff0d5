"""Which requests are scheduled first, which are preempted, and which are not admitted."""

import pytest

from engine_core import scheduler as scheduling
from engine_core.request import Request
from engine_core.step_plan import unpack_i32
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import make_core_request, oracle


def with_priority(handle: int, priority: int, prompt: list[int] | None = None, max_tokens: int = 4) -> Request:
    request = make_core_request(handle, prompt or [handle + 1, 2, 3], max_tokens)
    request.priority = priority
    return request


def test_priority_goes_first_and_arrival_breaks_ties() -> None:
    scheduler, worker = make_scheduler(max_num_seqs=1, by_priority=True)
    for handle, priority in enumerate([1, 0, 1, -1, 0]):
        add_all(scheduler, with_priority(handle, priority))
    order = []
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        order += [one.handle for one in scheduler.update(worker.execute(plan)).finished]
    assert order == [3, 1, 4, 0, 2]


def test_first_come_first_served_ignores_priorities() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=1)
    for handle, priority in enumerate([1, 0, -1]):
        add_all(scheduler, with_priority(handle, priority))
    assert [request.handle for request in scheduler.waiting] == [0, 1, 2]


def test_the_lowest_priority_is_preempted_not_the_youngest() -> None:
    scheduler, worker = make_scheduler(num_blocks=8, prefix_caching=False, by_priority=True)
    add_all(scheduler, with_priority(0, 5, [1, 2, 3], 20), with_priority(1, 0, [4, 5, 6], 20))
    victims = set()
    outputs: dict[int, list[int]] = {0: [], 1: []}
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        victims |= {request.handle for request in scheduler.waiting if request.num_preemptions}
        for tokens in scheduler.update(worker.execute(plan)).new_tokens:
            outputs[tokens.handle] += tokens.token_ids
    assert victims == {0}
    assert outputs == {0: oracle([1, 2, 3], 20), 1: oracle([4, 5, 6], 20)}


def test_the_latest_arrival_is_preempted_not_the_highest_handle() -> None:
    scheduler, worker = make_scheduler(num_blocks=8, prefix_caching=False)
    late, early = make_core_request(0, [1, 2, 3], 20), make_core_request(1, [4, 5, 6], 20)
    late.arrival, early.arrival = 9, 5
    add_all(scheduler, late, early)
    ended = []
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        ended += [one.handle for one in scheduler.update(worker.execute(plan)).finished]
    assert late.num_preemptions > 0 == early.num_preemptions
    assert ended == [1, 0] and late.output_token_ids == oracle([1, 2, 3], 20)


def test_a_long_prompt_is_cut_only_if_others_share_the_step() -> None:
    scheduler, worker = make_scheduler(budget=32, long_prefill_token_threshold=8)
    add_all(scheduler, make_core_request(0, list(range(1, 30)), 2))
    plan = scheduler.schedule()
    assert plan is not None and unpack_i32(plan.num_new_tokens).tolist() == [29], "it is alone in the step"
    scheduler.update(worker.execute(plan))
    add_all(scheduler, make_core_request(1, list(range(1, 40)), 2), make_core_request(2, [7, 8], 2))
    plan = scheduler.schedule()
    assert plan is not None and unpack_i32(plan.num_new_tokens).tolist() == [1, 8, 2]
    scheduler.update(worker.execute(plan))
    outputs, _ = run(scheduler, worker)
    assert outputs[1] == oracle(list(range(1, 40)), 2)


def test_a_step_admits_no_more_once_it_has_many_known_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached ones count: a step with many long prompts would take seconds to plan."""
    monkeypatch.setattr(scheduling, "MOST_KNOWN_TOKENS", 8)
    scheduler, worker = make_scheduler(budget=64)
    add_all(scheduler, *(make_core_request(handle, [7, 8, 9, handle], 2) for handle in (0, 1, 2)))
    add_all(scheduler, make_core_request(3, [5] * 20, 2), make_core_request(4, [5] * 3, 2))
    admitted = []
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        admitted.append([one.handle for one in plan.new_requests])
        scheduler.update(worker.execute(plan))
    assert [one for one in admitted if one] == [[0, 1], [2, 3], [4]]


def test_a_request_that_would_cause_a_preemption_is_not_admitted() -> None:
    """Two prompts of 6 blocks, in chunks, and 9 blocks in all: they run in turn, and no token is computed twice."""
    scheduler, worker = make_scheduler(num_blocks=9, budget=8, prefix_caching=False)
    prompts = {handle: [handle + 1] * 21 for handle in range(2)}
    add_all(scheduler, *(make_core_request(handle, prompt, 4) for handle, prompt in prompts.items()))
    outputs, _ = run(scheduler, worker)
    assert outputs == {handle: oracle(prompt, 4) for handle, prompt in prompts.items()}
    assert scheduler.counters.preemptions == 0
    assert sum(worker.step_tokens) == 2 * (21 + 3)


def test_queries_are_counted_only_with_prefix_caching() -> None:
    scheduler, worker = make_scheduler(prefix_caching=False)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 2))
    run(scheduler, worker)
    assert scheduler.counters.prefix_cache_queries == 0
