"""Requests that wait for something to be prepared: they block no other, and keep their place in the order."""

import msgspec
import pytest

from engine_core.flight_recorder import FlightRecorder, RecordedRequest, RecordedScheduler
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.replay import replay
from engine_core.request import SUSPECT_AT, Request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import SamplingParams
from tests.engine_core.test_restart import next_worker
from tests.engine_core.test_scheduler import add_all, make_scheduler, run
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle


def deferred(handle: int, max_tokens: int = 3, prompt: list[int] | None = None) -> Request:
    request = make_core_request(handle, prompt or [handle, 2, 3], max_tokens)
    request.waits_for = "grammar"
    return request


def step(scheduler: Scheduler, worker: FakeWorker) -> list[int]:
    """Runs one step; returns the handles of the running requests in it."""
    plan = scheduler.schedule()
    assert plan is not None
    running = [request.handle for request in scheduler.running]
    scheduler.update(worker.execute(plan))
    return running


def test_a_deferred_request_blocks_no_other_and_runs_once_it_is_ready() -> None:
    scheduler, worker = make_scheduler(max_num_seqs=1)
    add_all(scheduler, deferred(0), make_core_request(1, [1, 2, 3], 1), make_core_request(2, [2, 2, 3], 1))
    assert step(scheduler, worker) == [1]
    assert (scheduler.stats().num_waiting, scheduler.stats().num_deferred) == (2, 1)
    scheduler.ready(0)
    assert (scheduler.stats().num_waiting, scheduler.stats().num_deferred) == (2, 0)
    assert step(scheduler, worker) == [0], "its place is that of its arrival, before request 2"
    outputs, _ = run(scheduler, worker)
    assert outputs[0] == oracle([0, 2, 3], 3)[1:] and outputs[2] == oracle([2, 2, 3], 1)


def test_alone_it_makes_no_plan() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, deferred(0))
    assert scheduler.schedule() is None and scheduler.has_unfinished
    scheduler.ready(0)
    assert run(scheduler, worker)[0] == {0: oracle([0, 2, 3], 3)}


def test_it_may_be_aborted_or_fail_meanwhile() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, deferred(0), deferred(1), make_core_request(2, [5, 6], 2))
    aborted, failed = scheduler.abort(0), scheduler.fail(1, "the grammar has no end")
    assert aborted is not None and aborted.stop.reason == "abort"
    assert failed is not None and (failed.stop.reason, failed.stop.message) == ("error", "the grammar has no end")
    for handle in (0, 1, 9):
        scheduler.ready(handle)  # it comes too late
        assert scheduler.fail(handle, "again") is None
    assert run(scheduler, worker)[0] == {2: oracle([5, 6], 2)}
    stats = scheduler.stats()
    assert (stats.num_waiting, stats.num_deferred, stats.waiting_tokens) == (0, 0, 0)


def test_ready_again_changes_nothing() -> None:
    scheduler, worker = make_scheduler(max_num_seqs=1)
    add_all(scheduler, deferred(0), deferred(1))
    for _ in range(2):
        scheduler.ready(0)
        scheduler.ready(1)
    step(scheduler, worker)
    scheduler.ready(0)
    outputs, _ = run(scheduler, worker)
    assert outputs[1] == oracle([1, 2, 3], 3)


def test_it_survives_a_restart_as_deferred() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, deferred(0), make_core_request(1, [5, 6], 4))
    step(scheduler, worker)
    worker, ended = next_worker(scheduler)
    assert not ended and [request.handle for request in scheduler.waiting] == [1, 0]
    assert step(scheduler, worker) == [1] and scheduler.stats().num_deferred == 1
    scheduler.ready(0)
    assert step(scheduler, worker) == [0, 1]


def test_one_that_does_not_fit_the_next_worker_ends() -> None:
    scheduler, _ = make_scheduler()
    add_all(scheduler, deferred(0, 20))
    ended = scheduler.restart(KVCacheManager(2, 4, ("full",), prefix_caching=True), PlanBuilder(2, 1))
    assert [one.stop.message for one in ended] == ["the next worker's KV cache is too small: 8 tokens"]
    assert not scheduler.has_unfinished


@pytest.mark.parametrize("ready_suspect", [False, True])
def test_a_deferred_suspect_pauses_nothing(ready_suspect: bool) -> None:
    scheduler, worker = make_scheduler()
    suspect = deferred(0)
    suspect.strikes = SUSPECT_AT
    add_all(scheduler, make_core_request(1, [5, 6], 4), suspect, make_core_request(2, [7, 8], 4))
    if ready_suspect:
        scheduler.ready(0)
        assert step(scheduler, worker) == [0]
    else:
        assert step(scheduler, worker) == [1, 2]
        scheduler.ready(0)
        plan = scheduler.schedule()
        assert plan is not None and [new.handle for new in plan.new_requests] == [0], "it runs alone now"


def test_a_recording_repeats_what_became_ready_and_what_failed() -> None:
    recorder = FlightRecorder()
    facts = make_facts()
    kv = KVCacheManager(64, facts.block_size, ("full",), prefix_caching=True)
    scheduler = RecordedScheduler(kv, PlanBuilder(1, 1), SchedulerConfig(2, 64), recorder)
    worker = FakeWorker(facts)
    add_all(scheduler, deferred(0), make_core_request(1, [5, 6], 4), deferred(2), deferred(3))
    step(scheduler, worker)
    scheduler.ready(0)
    scheduler.fail(2, "no")
    step(scheduler, worker)
    worker, _ = next_worker(scheduler)
    step(scheduler, worker)
    scheduler.ready(3)
    run(scheduler, worker)
    encoded = msgspec.msgpack.encode(recorder.recording())
    recording = msgspec.msgpack.decode(encoded, type=type(recorder.recording()))
    assert replay(recording) == scheduler.counters.steps
    restarted = next(index for index, frame in enumerate(recording.frames[1:], 1) if hasattr(frame, "waiting"))
    recording.frames = recording.frames[restarted:]
    assert replay(recording) == scheduler.counters.steps - 2, "the waiting requests of the frame are deferred again"


def test_a_request_of_an_older_recording_is_ready() -> None:
    old = [7, b"", 0, SamplingParams(3), 0, 0, b"", 0, None, 0, 0, ""]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=RecordedRequest).waits_for == ""
