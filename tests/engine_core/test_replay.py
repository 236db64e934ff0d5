"""A replay makes the recorded plans again, and says where it cannot begin and where it differs."""

import msgspec
import pytest

from engine_core.flight_recorder import (
    VERSION,
    Added,
    FlightRecorder,
    Planned,
    RecordedScheduler,
    Recording,
    Resulted,
    WorkerJoined,
)
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.replay import NotReplayable, ReplayDiffers, replay
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import StepPlan, pack_i32
from engine_core.suspects import FIRST_TRIAL
from tests.engine_core.test_async import Pipe
from tests.engine_core.test_flight_recorder import FACTS, make_kv, recorded, some_work
from tests.engine_core.test_scheduler import add_all
from tests.fakes import FakeWorker, make_core_request


def recording_of_some_work() -> Recording:
    recorder = FlightRecorder()
    some_work(recorded(recorder))
    return recorder.recording()


def plans(recording: Recording) -> list[StepPlan]:
    return [frame.plan for frame in recording.frames if isinstance(frame, Planned) and frame.plan is not None]


def test_every_plan_is_made_again() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    some_work(pipe)
    assert replay(recorder.recording()) == pipe.scheduler.counters.steps > 6


def test_all_calls_are_made_again() -> None:
    """An abort, a reset, and a worker that dies with steps in flight."""
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, *(make_core_request(handle, [1, 2, 3, 4, handle], 9) for handle in range(3)))
    assert pipe.plan() and pipe.plan()
    pipe.scheduler.abort(1)
    pipe.scheduler.reset_prefix_cache()
    pipe.take()
    add_all(pipe.scheduler, make_core_request(3, [1, 2, 3, 4, 3], 9))
    assert pipe.plan() and pipe.worker.step_tokens[-1] == 1 + 1 + 5, "the first block is computed again"
    pipe.scheduler.restart(make_kv(), PlanBuilder(2, 1))
    second = Pipe(pipe.scheduler, FakeWorker(FACTS))
    second.run()
    assert replay(recorder.recording()) == second.scheduler.counters.steps


def test_lost_connections_are_no_deaths_again() -> None:
    """With two deaths more, the requests would run alone."""
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 5), make_core_request(1, [4, 5], 5))
    for epoch, is_death in enumerate((True, False, False), 2):
        assert pipe.plan()
        pipe.scheduler.restart(make_kv(), PlanBuilder(epoch, 1), is_death=is_death)
        pipe = Pipe(pipe.scheduler, FakeWorker(FACTS))
    pipe.run()
    assert replay(recorder.recording()) == pipe.scheduler.counters.steps
    frames = [frame for frame in recorder.recording().frames if isinstance(frame, WorkerJoined)]
    assert [frame.is_death for frame in frames][-3:] == [True, False, False]


def test_priorities_count_again() -> None:
    recorder = FlightRecorder()
    config = SchedulerConfig(1, 16, by_priority=True)
    pipe = Pipe(RecordedScheduler(make_kv(), PlanBuilder(1, 1), config, recorder), FakeWorker(FACTS))
    urgent = make_core_request(1, [4, 5], 3)
    urgent.priority = -1
    add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 3), urgent)
    pipe.run()
    assert pipe.admitted == [1, 0]
    assert replay(recorder.recording()) == pipe.scheduler.counters.steps


def test_arrivals_count_again() -> None:
    """Of requests that are added, and of those that a worker finds waiting."""
    recorder = FlightRecorder()
    pipe = Pipe(RecordedScheduler(make_kv(), PlanBuilder(1, 1), SchedulerConfig(1, 16), recorder), FakeWorker(FACTS))
    requests = [make_core_request(handle, [handle + 1, 2], 3) for handle in range(3)]
    for request, arrival in zip(requests, (7, 2**50, -1), strict=True):
        request.arrival = arrival
    add_all(pipe.scheduler, *requests)
    pipe.scheduler.restart(make_kv(), PlanBuilder(2, 1))
    pipe.run()
    assert pipe.admitted == [2, 0, 1]
    frames, num_steps = recorder.recording().frames, pipe.scheduler.counters.steps
    last = max(index for index, frame in enumerate(frames) if isinstance(frame, WorkerJoined))
    assert last > 0 and [replay(Recording(VERSION, frames[start:])) for start in (0, last)] == [num_steps] * 2


def test_preemptions_are_made_again() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    pipe.scheduler.restart(
        KVCacheManager(8, FACTS.block_size, FACTS.kv_groups, prefix_caching=False), PlanBuilder(2, 1)
    )
    pipe = Pipe(pipe.scheduler, FakeWorker(FACTS))
    add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 20), make_core_request(1, [4, 5, 6], 20))
    pipe.run()
    assert pipe.scheduler.counters.preemptions > 0
    assert replay(recorder.recording()) == pipe.scheduler.counters.steps


def test_a_replay_begins_where_the_first_worker_joined() -> None:
    """Frames before it are the end of an older run. Slots that run had used are given out in the same order."""
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, *(make_core_request(handle, [1, 2, handle], 9) for handle in range(3)))
    assert pipe.plan()
    pipe.take()
    pipe.scheduler.abort(0)
    pipe.scheduler.restart(make_kv(), PlanBuilder(2, 1))
    Pipe(pipe.scheduler, FakeWorker(FACTS)).run()
    frames = recorder.recording().frames
    assert isinstance(frames[0], WorkerJoined)
    assert replay(Recording(VERSION, frames[1:])) == pipe.scheduler.counters.steps - 1


def test_suspects_are_suspects_again() -> None:
    """The last worker joins after two deaths without a token: each request runs alone for its trial, the
    first one once more before the other's."""
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, *(make_core_request(handle, [1, 2, handle], 9) for handle in range(2)))
    for epoch in (2, 3):
        assert pipe.plan()
        pipe.scheduler.restart(make_kv(), PlanBuilder(epoch, 1))
        pipe = Pipe(pipe.scheduler, FakeWorker(FACTS))
    pipe.run()
    frames = recorder.recording().frames
    last = max(index for index, frame in enumerate(frames) if isinstance(frame, WorkerJoined))
    made = plans(Recording(VERSION, frames[last:]))
    assert [len(plan.new_requests) for plan in made[: FIRST_TRIAL + 2]] == [1, *[0] * FIRST_TRIAL, 1]
    assert replay(Recording(VERSION, frames[last:])) == len(made)


@pytest.mark.parametrize("count", [0, 2])
def test_a_recording_without_a_worker_that_joins_has_no_beginning(count: int) -> None:
    frames = recording_of_some_work().frames[1 : 1 + count]
    with pytest.raises(NotReplayable, match="the recording begins in the middle"):
        replay(Recording(VERSION, frames))


def test_a_plan_that_differs_is_named_by_its_step() -> None:
    recording = recording_of_some_work()
    plan = plans(recording)[3]
    plan.num_new_tokens = pack_i32([9])
    with pytest.raises(ReplayDiffers, match=r"^step 4: recorded StepPlan\(.*, replayed StepPlan\("):
        replay(recording)


def test_a_plan_that_was_not_made_before_differs() -> None:
    recording = recording_of_some_work()
    index = next(index for index, frame in enumerate(recording.frames) if isinstance(frame, Planned))
    recording.frames[index] = Planned(None)
    with pytest.raises(ReplayDiffers, match=r"^step 1: recorded None, replayed StepPlan\("):
        replay(recording)


def test_a_plan_that_is_not_made_again_differs() -> None:
    recording = recording_of_some_work()
    without_requests = [frame for frame in recording.frames if not isinstance(frame, Added)]
    with pytest.raises(ReplayDiffers, match=r"^step 1: recorded StepPlan\(.*, replayed None$"):
        replay(Recording(VERSION, without_requests))


def test_what_the_busy_loop_adds_to_a_plan_is_not_compared() -> None:
    recording = recording_of_some_work()
    for plan in plans(recording):
        plan.deadline_ms, plan.was_runnable = 70, True
    assert replay(recording) == len(plans(recording))


def test_another_configuration_makes_other_plans() -> None:
    recording = recording_of_some_work()
    joined = recording.frames[0]
    assert isinstance(joined, WorkerJoined)
    recording.frames[0] = msgspec.structs.replace(joined, config=SchedulerConfig(8, 17))
    with pytest.raises(ReplayDiffers):
        replay(recording)


def test_an_error_of_the_scheduler_is_raised_again() -> None:
    recording = recording_of_some_work()
    result = next(frame.result for frame in recording.frames if isinstance(frame, Resulted))
    result.counts = b""
    with pytest.raises(ValueError, match="zip"):
        replay(recording)
