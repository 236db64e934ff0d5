"""The worker dies and another one connects: requests continue; one that keeps killing workers ends with an error."""

from engine_core.events import Finished
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import SUSPECT_AT
from engine_core.scheduler import Scheduler
from engine_core.step_plan import unpack_i32
from engine_core.suspects import FIRST_TRIAL
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle


def next_worker(scheduler: Scheduler, *, is_death: bool = True) -> tuple[FakeWorker, list[Finished]]:
    facts = make_facts(num_blocks=scheduler.kv.pool.num_blocks)
    kv = KVCacheManager(facts.num_blocks, facts.block_size, (FULL,), prefix_caching=True)
    ended = scheduler.restart(kv, PlanBuilder(2, 1), is_death=is_death)
    return FakeWorker(facts), ended


def test_running_and_waiting_requests_go_on_with_their_own_tokens() -> None:
    """Results of two steps are lost; each request still has one Admitted event."""
    scheduler, worker = make_scheduler(max_num_seqs=2)
    add_all(scheduler, *(make_core_request(handle, [handle, 2, 3], 9) for handle in range(3)))
    for _ in range(2):
        plan = scheduler.schedule()
        assert plan is not None
        worker.execute(plan)
    worker, ended = next_worker(scheduler)
    assert not ended and len(scheduler.waiting) == 3 and not scheduler.running
    plan = scheduler.schedule()
    assert plan is not None and plan.base_step_id is None, "the next worker has no earlier plan"
    events = scheduler.update(worker.execute(plan))
    assert [one.handle for one in events.admitted] == [0, 1]
    outputs, finished = run(scheduler, worker)
    first = {tokens.handle: tokens.token_ids for tokens in events.new_tokens}
    assert {handle: first.get(handle, []) + rest for handle, rest in outputs.items()} == {
        handle: oracle([handle, 2, 3], 9) for handle in range(3)
    }
    assert {one.stop.reason for one in finished.values()} == {"length"}


def test_a_preempted_request_does_not_wait_for_a_lost_result() -> None:
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
    """The worker dies in the middle of the next step."""
    assert scheduler.schedule() is not None
    return next_worker(scheduler)[1]


def test_two_deaths_make_a_suspect_and_two_alone_end_it() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6), make_core_request(1, [4, 5], 6))
    assert die(scheduler) == [] and die(scheduler) == []
    assert die(scheduler) == [], "perhaps by chance"
    ended = die(scheduler)
    assert [(one.handle, one.stop.reason) for one in ended] == [(0, "error")]
    assert ended[0].stop.message == "the worker died while it ran this request alone"
    plan = scheduler.schedule()
    assert plan is not None and [request.handle for request in scheduler.running] == [1], "the next suspect, alone"


def test_a_lost_connection_is_no_strike() -> None:
    """The worker that registers is the one that was lost: nothing has killed it."""
    scheduler, _ = make_scheduler()
    request = make_core_request(0, [1, 2, 3], 6)
    add_all(scheduler, request)
    for _ in range(5):
        assert scheduler.schedule() is not None
        _, ended = next_worker(scheduler, is_death=False)
        assert not ended and request.strikes == 0
    assert die(scheduler) == [] and request.strikes == 1
    outputs, _ = run(scheduler, next_worker(scheduler, is_death=False)[0])
    assert outputs == {0: oracle([1, 2, 3], 6)}


def test_a_trial_clears_a_suspect() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 9), make_core_request(1, [4, 5], 9))
    assert die(scheduler) == die(scheduler) == []
    worker, _ = next_worker(scheduler)  # nothing ran: no strike
    steps = []
    for _ in range(2 * FIRST_TRIAL + 2):
        plan = scheduler.schedule()
        assert plan is not None
        if len(steps) not in (FIRST_TRIAL, 2 * FIRST_TRIAL + 1):
            assert scheduler.schedule() is None, "no step is planned while a suspect's step is in flight"
        steps.append([tokens.handle for tokens in scheduler.update(worker.execute(plan)).new_tokens])
    assert steps == [[0]] * (FIRST_TRIAL + 1) + [[1]] * FIRST_TRIAL + [[0, 1]], (
        "the first one pauses while the second one runs alone, and has a step before"
    )
    assert die(scheduler) == []


def test_a_request_that_kills_behind_some_tokens_is_found() -> None:
    """Each worker dies in the tenth step that has the request. Its third trial takes longer."""
    scheduler, worker = make_scheduler()
    killer = make_core_request(1, [4, 5], 60)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 60), killer)
    deaths, ended = 0, list[Finished]()
    while not ended:
        steps = 0
        while steps < 10:
            plan = scheduler.schedule()
            assert plan is not None
            steps += killer.slot in unpack_i32(plan.slots)
            if steps < 10:
                scheduler.update(worker.execute(plan))
        deaths += 1
        worker, ended = next_worker(scheduler)
    assert [one.handle for one in ended] == [1] and deaths == 5


def test_a_request_that_arrives_as_a_suspect_runs_alone() -> None:
    """The tokenizer has counted engine deaths against it: running requests pause, and two more deaths end it."""
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 9))
    run_steps(scheduler, worker, 2)
    suspect = make_core_request(1, [4, 5], 9)
    suspect.strikes = SUSPECT_AT
    add_all(scheduler, suspect)
    plan = scheduler.schedule()
    assert plan is not None and len(unpack_i32(plan.slots)) == 1 and [new.handle for new in plan.new_requests] == [1]
    assert scheduler.schedule() is None, "no step is planned while its step is in flight"
    assert next_worker(scheduler)[1] == []
    plan = scheduler.schedule()
    assert plan is not None and [new.handle for new in plan.new_requests] == [1]
    ended = next_worker(scheduler)[1]
    assert [(one.handle, one.stop.reason) for one in ended] == [(1, "error")]


def test_a_suspect_waits_for_no_other_request_to_end() -> None:
    """All slots are taken by requests that may run for long: the lowest-ranked one is preempted."""
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


def test_many_suspects_stop_the_others_for_one_at_a_time() -> None:
    """One of the others runs, one waits for a slot of its own: it is admitted, though suspects rank before it."""
    scheduler, worker = make_scheduler(max_num_seqs=3)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 20))
    run_steps(scheduler, worker, 2)
    suspects = [make_core_request(handle, [4, 5], 1) for handle in range(1, 5)]
    for suspect in suspects:
        suspect.strikes = SUSPECT_AT
    add_all(scheduler, *suspects, make_core_request(5, [6, 7], 20))
    steps = []
    for _ in range(9):
        plan = scheduler.schedule()
        assert plan is not None
        steps.append([tokens.handle for tokens in scheduler.update(worker.execute(plan)).new_tokens])
    assert steps == [[1], [0, 5], [2], [0, 5], [3], [0, 5], [4], [0, 5], [0, 5]]


def test_a_death_in_the_others_step_is_a_strike_for_them() -> None:
    """The next suspect waits in that step: its own strikes stay as they are."""
    scheduler, worker = make_scheduler()
    other, last = make_core_request(0, [1, 2, 3], 20), make_core_request(2, [4, 5], 1)
    add_all(scheduler, other)
    first = make_core_request(1, [4, 5], 1)
    first.strikes = last.strikes = SUSPECT_AT
    add_all(scheduler, first, last)
    run_steps(scheduler, worker, 1)
    assert die(scheduler) == [] and (other.strikes, last.strikes) == (1, SUSPECT_AT)


def test_a_request_that_does_not_fit_the_next_worker_ends_with_the_reason() -> None:
    scheduler, _ = make_scheduler(num_blocks=8)
    add_all(scheduler, make_core_request(0, [1] * 9, 8), make_core_request(1, [1] * 9, 9))
    ended = scheduler.restart(KVCacheManager(4, 4, (FULL,), prefix_caching=True), PlanBuilder(2, 1))
    assert [(one.handle, one.stop.message) for one in ended] == [
        (1, "the next worker's KV cache is too small: 16 tokens")
    ]
    assert scheduler.schedule() is not None
