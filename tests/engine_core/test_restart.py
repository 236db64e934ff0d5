"""The worker dies, another one comes: everything goes on, and who kills again and again is sent away."""

from engine_core.events import Finished
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import SUSPECT_AT
from engine_core.scheduler import Scheduler
from engine_core.step_plan import unpack_i32
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle


def next_worker(scheduler: Scheduler) -> tuple[FakeWorker, list[Finished]]:
    facts = make_facts(num_blocks=scheduler.kv.pool.num_blocks)
    kv = KVCacheManager(facts.num_blocks, facts.block_size, ("full",), prefix_caching=True)
    ended = scheduler.restart(kv, PlanBuilder(2, 1))
    return FakeWorker(facts), ended


def test_what_ran_and_what_waited_goes_on_with_its_own_tokens() -> None:
    """Results of two steps are lost; admission is told once all the same."""
    scheduler, worker = make_scheduler(max_num_seqs=2)
    add_all(scheduler, *(make_core_request(handle, [handle, 2, 3], 9) for handle in range(3)))
    for _ in range(2):
        plan = scheduler.schedule()
        assert plan is not None
        worker.execute(plan)
    worker, ended = next_worker(scheduler)
    assert not ended and len(scheduler.waiting) == 3 and not scheduler.running
    plan = scheduler.schedule()
    assert plan is not None and plan.base_step_id is None, "the next worker knows of nothing"
    events = scheduler.update(worker.execute(plan))
    assert [one.handle for one in events.admitted] == [0, 1]
    outputs, finished = run(scheduler, worker)
    first = {tokens.handle: tokens.token_ids for tokens in events.new_tokens}
    assert {handle: first.get(handle, []) + rest for handle, rest in outputs.items()} == {
        handle: oracle([handle, 2, 3], 9) for handle in range(3)
    }
    assert {one.stop.reason for one in finished.values()} == {"length"}


def test_a_preempted_request_waits_for_no_result_that_is_lost() -> None:
    scheduler, worker = make_scheduler(num_blocks=8, prefix_caching=False)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 20), make_core_request(1, [4, 5, 6], 20))
    while not scheduler.counters.preemptions:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(worker.execute(plan))
    (victim,) = scheduler.waiting
    assert victim.last_step_id > 1
    worker, _ = next_worker(scheduler)
    scheduler.abort(0)
    assert scheduler.schedule() is not None, "it may run at once"


def run_steps(scheduler: Scheduler, worker: FakeWorker, count: int) -> None:
    for _ in range(count):
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(worker.execute(plan))


def die(scheduler: Scheduler) -> list[Finished]:
    """In the middle of the next step."""
    assert scheduler.schedule() is not None
    return next_worker(scheduler)[1]


def test_two_deaths_make_it_run_alone_and_the_third_one_ends_it() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6), make_core_request(1, [4, 5], 6))
    assert die(scheduler) == [] and die(scheduler) == []
    ended = die(scheduler)
    assert [(one.handle, one.stop.reason) for one in ended] == [(0, "error")]
    assert ended[0].stop.message == "the worker died while it ran this request alone"
    plan = scheduler.schedule()
    assert plan is not None and [request.handle for request in scheduler.running] == [1], "the next suspect, alone"


def test_a_token_clears_a_suspect() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6), make_core_request(1, [4, 5], 6))
    assert die(scheduler) == die(scheduler) == []
    worker, _ = next_worker(scheduler)  # nothing ran: no strike
    told = []
    for _ in range(3):
        plan = scheduler.schedule()
        assert plan is not None
        if len(told) < 2:
            assert scheduler.schedule() is None, "nothing goes ahead of a suspect's step"
        told.append([tokens.handle for tokens in scheduler.update(worker.execute(plan)).new_tokens])
    assert told == [[0], [1], [0, 1]], "the first pauses while the second is looked at"
    assert die(scheduler) == []


def test_one_that_comes_as_a_suspect_has_its_steps_to_itself() -> None:
    """Somebody above has seen deaths under it: the running pause, and the next death is its own."""
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 9))
    run_steps(scheduler, worker, 2)
    suspect = make_core_request(1, [4, 5], 9)
    suspect.strikes = SUSPECT_AT
    add_all(scheduler, suspect)
    plan = scheduler.schedule()
    assert plan is not None and len(unpack_i32(plan.slots)) == 1 and [new.handle for new in plan.new_requests] == [1]
    assert scheduler.schedule() is None, "nothing goes ahead of it"
    ended = next_worker(scheduler)[1]
    assert [(one.handle, one.stop.reason) for one in ended] == [(1, "error")]


def test_a_suspect_waits_for_nobody_to_end() -> None:
    """All slots are taken, by whoever may run for long: the last of them gives its own up for now."""
    scheduler, worker = make_scheduler(max_num_seqs=2)
    add_all(scheduler, *(make_core_request(handle, [handle, 2, 3], 20) for handle in range(2)))
    run_steps(scheduler, worker, 3)
    suspect = make_core_request(2, [4, 5], 9)
    suspect.strikes = SUSPECT_AT
    add_all(scheduler, suspect)
    plan = scheduler.schedule()
    assert plan is not None and [new.handle for new in plan.new_requests] == [2]
    scheduler.update(worker.execute(plan))
    outputs, _ = run(scheduler, worker)
    assert {handle: tokens[-5:] for handle, tokens in outputs.items()} == {
        handle: oracle([handle, 2, 3], 20)[-5:] for handle in range(2)
    } | {2: oracle([4, 5], 9)[-5:]}


def test_who_does_not_fit_the_next_worker_ends_with_the_reason() -> None:
    scheduler, _ = make_scheduler(num_blocks=8)
    add_all(scheduler, make_core_request(0, [1] * 9, 8), make_core_request(1, [1] * 9, 9))
    ended = scheduler.restart(KVCacheManager(4, 4, ("full",), prefix_caching=True), PlanBuilder(2, 1))
    assert [(one.handle, one.stop.message) for one in ended] == [
        (1, "the next worker's KV cache is too small: 16 tokens")
    ]
    assert scheduler.schedule() is not None
