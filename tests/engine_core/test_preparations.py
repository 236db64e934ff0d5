"""Requests that wait for their grammar: they block no other, keep their place, and are prepared again by a next worker.

A grammar that kills workers fails alone.
"""

from typing import Any

import msgspec
import pytest

from engine_core import preparations
from engine_core.flight_recorder import FlightRecorder, RecordedScheduler
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.replay import replay
from engine_core.request import SUSPECT_AT, Request, Stop
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from tests.engine_core.test_async import Pipe
from tests.engine_core.test_restart import next_worker
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle, prepare_all, prepare_message


def constrained(handle: int, max_tokens: int = 3, grammar: str = "20", **changes: Any) -> Request:
    return make_core_request(handle, [handle, 2, 3], max_tokens, grammar=grammar, **changes)


def begun(scheduler: Scheduler) -> list[int]:
    """Returns the handles of the requests that are to be prepared now."""
    return [request.handle for request in scheduler.prepare()]


def prepare_one(scheduler: Scheduler, worker: FakeWorker, handle: int) -> None:
    """Prepares a request that `begun` has returned."""
    request = next(request for request in scheduler.waiting if request.handle == handle)
    answer = worker.prepare(prepare_message(request))
    assert scheduler.prepared(handle, answer.error, is_complete=answer.is_complete) is None


def step(scheduler: Scheduler, worker: FakeWorker) -> list[int]:
    """Runs one step; returns the handles of the running requests in it."""
    plan = scheduler.schedule()
    assert plan is not None
    running = [request.handle for request in scheduler.running]
    scheduler.update(worker.execute(plan))
    return running


def test_a_deferred_request_blocks_no_other_and_runs_once_it_is_prepared() -> None:
    scheduler, worker = make_scheduler(max_num_seqs=1)
    add_all(scheduler, constrained(0), make_core_request(1, [1, 2, 3], 1), make_core_request(2, [2, 2, 3], 1))
    assert begun(scheduler) == [0] and begun(scheduler) == []
    assert step(scheduler, worker) == [1]
    assert (scheduler.stats().num_waiting, scheduler.stats().num_deferred) == (2, 1)
    prepare_one(scheduler, worker, 0)
    assert (scheduler.stats().num_waiting, scheduler.stats().num_deferred) == (2, 0)
    assert step(scheduler, worker) == [0], "its place is that of its arrival, before request 2"
    outputs, _ = run(scheduler, worker)
    assert outputs[0] == oracle([0, 2, 3], 3)[1:] and outputs[2] == oracle([2, 2, 3], 1)


def test_alone_it_makes_no_plan() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, constrained(0))
    assert scheduler.schedule() is None and scheduler.has_unfinished
    prepare_all(scheduler, worker)
    assert run(scheduler, worker)[0] == {0: oracle([0, 2, 3], 3)}


def test_one_that_cannot_be_prepared_is_the_clients_error() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, constrained(0, grammar="no end"), constrained(1))
    (failed,) = prepare_all(scheduler, worker)
    assert (failed.handle, failed.stop) == (0, Stop("error", message="not a number: no end", param="grammar"))
    assert run(scheduler, worker)[0] == {1: oracle([1, 2, 3], 3)}
    add_all(scheduler, make_core_request(2, [5, 6], 1))
    plan = scheduler.schedule()
    assert plan is not None and plan.dropped_grammars == [1], "the worker holds nothing of the one that failed"


def test_one_that_has_ended_is_dropped_once_it_is_prepared() -> None:
    """Not earlier: else the worker would have to remember that a grammar must be dropped that it does not have."""
    scheduler, worker = make_scheduler()
    requests = [constrained(0), constrained(1), constrained(2)]
    add_all(scheduler, *requests, make_core_request(9, [5, 6], 3))
    assert scheduler.abort(0) is not None, "it was not begun"
    assert begun(scheduler) == [1, 2]
    prepare_one(scheduler, worker, 2)
    assert scheduler.abort(1) is not None and scheduler.abort(2) is not None
    plan = scheduler.schedule()
    assert plan is not None and plan.dropped_grammars == [2]
    scheduler.update(worker.execute(plan))
    worker.prepare(prepare_message(requests[1]))
    for handle in (0, 1, 1, 7):
        assert scheduler.prepared(handle) is None, "for 0 and 7, nothing was asked; 1 has ended"
    plan = scheduler.schedule()
    assert plan is not None and plan.dropped_grammars == [1]
    worker.execute(plan)
    assert not worker.grammars
    stats = scheduler.stats()
    assert (stats.num_waiting, stats.num_deferred, stats.waiting_tokens) == (0, 0, 0)


def test_each_request_that_ended_is_dropped_once() -> None:
    """By its grammar's end, its maximum length, an abort and an error."""
    scheduler, worker = make_scheduler()
    add_all(scheduler, constrained(0, 9, "2"), constrained(1, 2), constrained(2, 9), constrained(3, 9))
    prepare_all(scheduler, worker)
    step(scheduler, worker)
    scheduler.abort(2)
    plan = scheduler.schedule()
    assert plan is not None and plan.dropped_grammars == [2]
    result = worker.execute(plan)
    result.errors = [(3, "broken")]
    scheduler.update(result)
    add_all(scheduler, make_core_request(4, [5, 6], 2))
    dropped = []
    while (plan := scheduler.schedule()) is not None:
        scheduler.update(worker.execute(plan))
        dropped.append(sorted(plan.dropped_grammars))
    assert dropped == [[0, 1, 3], []] and not worker.grammars


def test_a_preempted_request_is_not_prepared_again() -> None:
    scheduler, worker = make_scheduler(num_blocks=8, prefix_caching=False)
    add_all(scheduler, constrained(0, 20), constrained(1, 20))
    prepare_all(scheduler, worker)
    while not scheduler.counters.preemptions:
        step(scheduler, worker)
    assert not begun(scheduler) and scheduler.stats().num_deferred == 0
    outputs, _ = run(scheduler, worker)
    assert {handle: tokens[-5:] for handle, tokens in outputs.items()} == {
        handle: oracle([handle, 2, 3], 20)[-5:] for handle in range(2)
    }


def test_the_worker_holds_twice_as_many_as_can_run() -> None:
    scheduler, worker = make_scheduler(max_num_seqs=2)
    add_all(scheduler, *(constrained(handle, 2) for handle in range(7)))
    assert begun(scheduler) == [0, 1, 2, 3]
    for handle in (2, 0, 1):
        prepare_one(scheduler, worker, handle)
    assert step(scheduler, worker) == [0, 1] and begun(scheduler) == []
    step(scheduler, worker)
    assert begun(scheduler) == [4, 5], "two have ended"
    for handle in (4, 5):
        prepare_one(scheduler, worker, handle)
    assert step(scheduler, worker) == [2, 4], "3 is still in progress"


def test_what_ended_requests_leave_with_the_worker_is_bounded_too() -> None:
    """A step may run for long, while requests are prepared and aborted."""
    scheduler, worker = make_scheduler(max_num_seqs=2)
    add_all(scheduler, make_core_request(100, [1, 2, 3], 5))
    plan = scheduler.schedule()
    assert plan is not None
    for handle in range(20):
        add_all(scheduler, constrained(handle))
        for one in begun(scheduler):
            prepare_one(scheduler, worker, one)
        scheduler.abort(handle)
    assert len(worker.grammars) == 8, "four that may run, and four of ended ones"
    scheduler.update(worker.execute(plan))
    assert step(scheduler, worker) == [100] and not worker.grammars


def test_a_grammar_is_prepared_although_no_plan_has_dropped_others() -> None:
    scheduler, worker = make_scheduler(max_num_seqs=1)
    for handle in range(9):
        add_all(scheduler, constrained(handle))
        assert begun(scheduler) == [handle]
        prepare_one(scheduler, worker, handle)
        scheduler.abort(handle)
    add_all(scheduler, constrained(9))
    assert begun(scheduler) == [9]
    prepare_one(scheduler, worker, 9)
    assert step(scheduler, worker) == [9] and len(worker.grammars) == 1


def test_few_are_in_progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparations, "MAX_IN_PROGRESS", 2)
    scheduler, worker = make_scheduler()
    add_all(scheduler, *(constrained(handle) for handle in range(5)))
    assert begun(scheduler) == [0, 1]
    prepare_one(scheduler, worker, 1)
    assert begun(scheduler) == [2]


def test_they_are_prepared_in_the_order_of_the_queue() -> None:
    scheduler, _ = make_scheduler(max_num_seqs=1, by_priority=True)
    requests = [constrained(handle) for handle in range(4)]
    for request, priority in zip(requests, (1, 0, 1, 0), strict=True):
        request.priority = priority
    requests[2].strikes = SUSPECT_AT
    add_all(scheduler, *requests)
    scheduler.abort(1)
    assert begun(scheduler) == [2, 3], "the suspect, then the lower number"


def test_requests_that_end_unprepared_do_not_stay_in_the_queue() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, make_core_request(1000, [1], grammar="9"))
    for handle in range(1000):
        add_all(scheduler, make_core_request(handle, [1], grammar="9"))
        scheduler.abort(handle)
    assert len(scheduler._preparations._queue) < 100 and begun(scheduler) == [1000]


def test_a_grammar_ends_the_answer() -> None:
    eos = oracle([0, 2, 3], 4)[-1]
    scheduler, worker = make_scheduler()
    add_all(
        scheduler,
        constrained(0, 9, "3"),
        constrained(1, 9, "3", ignore_eos=True, eos_token_ids=(oracle([1, 2, 3], 2)[-1],)),
        constrained(2, 3, "3"),
        constrained(3, 9, "3", stop_token_ids=(oracle([3, 2, 3], 3)[-1],)),
        constrained(4, 9, "3", min_tokens=3),
        constrained(5, 9, "3", min_tokens=4),
    )
    assert eos not in oracle([0, 2, 3], 3)
    prepare_all(scheduler, worker)
    outputs, finished = run(scheduler, worker)
    assert outputs == {handle: oracle([handle, 2, 3], 3) for handle in range(6)}
    assert [finished[handle].stop.reason for handle in range(6)] == ["stop"] * 5 + ["error"]
    assert finished[2].stop == Stop("stop"), "complete at max_tokens is complete"
    assert finished[3].stop.stop_token_id == outputs[3][-1]
    message = "the grammar is complete after 3 tokens, but min_tokens is 4"
    assert finished[5].stop == Stop("error", message=message, param="min_tokens")


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_tokens_past_the_grammars_end_are_dropped(steps_in_flight: int) -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, constrained(0, 9, "3", logprobs=2), make_core_request(1, [1, 2, 3], 9))
    prepare_all(scheduler, worker)
    pipe = Pipe(scheduler, worker, steps_in_flight)
    pipe.run()
    assert pipe.outputs == {0: oracle([0, 2, 3], 3), 1: oracle([1, 2, 3], 9)}
    assert pipe.finished[0].stop == Stop("stop") and pipe.finished[0].num_output_tokens == 3


def test_a_resumed_answer_that_completes_its_grammar_runs_no_step() -> None:
    scheduler, worker = make_scheduler()
    whole = oracle([0, 2, 3], 3)
    add_all(scheduler, constrained(0, 9, "3", resumed=whole), constrained(1, 9, "0"))
    finished = prepare_all(scheduler, worker)
    assert [(one.handle, one.stop, one.num_output_tokens) for one in finished] == [
        (0, Stop("stop"), 3),
        (1, Stop("stop"), 0),
    ]
    assert scheduler.schedule() is None and not scheduler.has_unfinished
    add_all(scheduler, make_core_request(2, [5, 6], 1))
    run(scheduler, worker)
    assert not worker.grammars


def test_a_recording_repeats_preparations() -> None:
    recorder = FlightRecorder()
    facts = make_facts()
    kv = KVCacheManager(64, facts.block_size, (FULL,), prefix_caching=True)
    scheduler = RecordedScheduler(kv, PlanBuilder(1, 1), SchedulerConfig(2, 64), recorder)
    worker = FakeWorker(facts)
    add_all(scheduler, constrained(0), make_core_request(1, [5, 6], 4), constrained(2, grammar="no"), constrained(3))
    step(scheduler, worker)
    assert begun(scheduler) == [0, 2, 3]
    prepare_one(scheduler, worker, 0)
    assert scheduler.prepared(2, "no") is not None
    step(scheduler, worker)
    worker, _ = next_worker(scheduler)  # while 3 is prepared
    step(scheduler, worker)
    assert begun(scheduler) == [3] and scheduler.schedule() is None
    prepare_one(scheduler, worker, 3)
    prepare_all(scheduler, worker)
    run(scheduler, worker)
    encoded = msgspec.msgpack.encode(recorder.recording())
    recording = msgspec.msgpack.decode(encoded, type=type(recorder.recording()))
    assert replay(recording) == scheduler.counters.steps
    restarted = next(index for index, frame in enumerate(recording.frames[1:], 1) if hasattr(frame, "waiting"))
    recording.frames = recording.frames[restarted:]
    assert replay(recording) == scheduler.counters.steps - 2, "the waiting requests of the frame are deferred again"
