"""What a recording holds: every call in its order, as it was when it was made, within the ring's limit."""

import msgspec
import pytest

from engine_core.batch import Batch, Ints
from engine_core.flight_recorder import (
    VERSION,
    Aborted,
    Added,
    FlightRecorder,
    Planned,
    PrefixCacheReset,
    RecordedScheduler,
    Recording,
    Resulted,
    WorkerJoined,
)
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import StepPlan, unpack_i32
from tests.engine_core.test_async import Pipe
from tests.engine_core.test_scheduler import add_all
from tests.fakes import FakeWorker, make_core_request, make_facts, make_result, prepare_all

FACTS = make_facts()


def make_kv() -> KVCacheManager:
    return KVCacheManager(FACTS.num_blocks, FACTS.block_size, FACTS.kv_groups, prefix_caching=True)


def recorded(recorder: FlightRecorder) -> Pipe:
    scheduler = RecordedScheduler(make_kv(), PlanBuilder(1, 1), SchedulerConfig(8, 16), recorder)
    return Pipe(scheduler, FakeWorker(FACTS))


def some_work(pipe: Pipe, first_handle: int = 0) -> None:
    """Four requests, from their prompts to their last tokens."""
    requests = [make_core_request(first_handle + one, [*range(1, 12), one], 6 + one) for one in range(4)]
    add_all(pipe.scheduler, *requests)
    pipe.run()


def names(recorder: FlightRecorder) -> list[str]:
    return [type(frame).__name__ for frame in recorder.recording().frames]


def test_every_call_is_recorded_in_order() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, make_core_request(3, [1, 2, 3], 2))
    assert pipe.plan()
    pipe.take()
    pipe.scheduler.reset_prefix_cache()
    pipe.scheduler.abort(3)
    pipe.scheduler.restart(make_kv(), PlanBuilder(2, 1))
    match recorder.recording().frames:
        case [
            WorkerJoined(epoch=1, waiting=[]),
            Added(request),
            Planned(StepPlan(step_id=1)),
            Resulted(result),
            PrefixCacheReset(),
            Aborted(3),
            WorkerJoined(epoch=2),
        ]:
            assert request.handle == 3 and result.step_id == 1
        case frames:
            pytest.fail(f"other frames: {frames}")


def test_an_idle_scheduler_records_no_plans() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    assert not pipe.plan()
    assert names(recorder) == ["WorkerJoined"]
    add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 1))
    assert pipe.plan() and not pipe.plan()
    assert names(recorder) == ["WorkerJoined", "Added", "Planned", "Planned"], (
        "the second call finds nothing to compute before a result"
    )


def test_a_request_is_recorded_as_it_was_when_it_was_added() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    request = make_core_request(0, [1, 2, 3], 5, resumed=[4])
    request.strikes = 1
    add_all(pipe.scheduler, request)
    pipe.run()
    assert request.num_tokens == 8 and request.strikes == 0 and request.num_cached_tokens == 0
    added = recorder.recording().frames[1]
    assert isinstance(added, Added)
    assert unpack_i32(added.request.token_ids).tolist() == [1, 2, 3, 4]
    assert (added.request.num_prompt_tokens, added.request.strikes, added.request.num_cached_tokens) == (3, 1, None)
    assert added.request.sampling == request.sampling and added.request.root_hash == request.root_hash


def test_a_worker_that_joins_finds_waiting_requests_and_free_slots() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, *(make_core_request(handle, [handle, 2, 3], 9) for handle in range(2)))
    assert pipe.plan()
    pipe.take()
    pipe.scheduler.restart(
        KVCacheManager(32, FACTS.block_size, FACTS.kv_groups, prefix_caching=False), PlanBuilder(2, 1)
    )
    joined = recorder.recording().frames[-1]
    assert isinstance(joined, WorkerJoined)
    assert (joined.epoch, joined.num_blocks, joined.block_size, joined.kv_groups) == (2, 32, 4, (FULL,))
    assert not joined.prefix_caching and joined.config == SchedulerConfig(8, 16)
    tokens = [unpack_i32(request.token_ids).tolist() for request in joined.waiting]
    assert tokens == [[handle, 2, 3, pipe.outputs[handle][0]] for handle in range(2)]
    assert [request.strikes for request in joined.waiting] == [1, 1]
    assert joined.free_slots == pipe.scheduler.batch.free_slots and joined.free_slots[-1] == 1, "freed last, used first"


def test_a_call_that_raises_is_recorded() -> None:
    class BrokenBuilder(PlanBuilder):
        def build(self, batch: Batch, slots: Ints, num_new_tokens: Ints, admitted: list[Request]) -> StepPlan:
            raise RuntimeError("a bug")

    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 5))
    plan = pipe.scheduler.schedule()
    assert plan is not None
    malformed = make_result(plan, [(0, 0, 7)])
    malformed.counts = b""
    with pytest.raises(ValueError, match="zip"):
        pipe.scheduler.update(malformed)
    assert recorder.recording().frames[-1] == Resulted(malformed)
    pipe.scheduler.restart(make_kv(), BrokenBuilder(2, 1))
    with pytest.raises(RuntimeError, match="a bug"):
        pipe.scheduler.schedule()
    assert recorder.recording().frames[-1] == Planned(None)


def test_the_ring_keeps_the_newest_frames() -> None:
    recorder = FlightRecorder(max_bytes=6000)
    pipe = recorded(recorder)
    for round_ in range(5):
        some_work(pipe, 10 * round_)
    frames = recorder.recording().frames
    assert 10 < len(frames) < 30 and not any(isinstance(frame, WorkerJoined) for frame in frames)
    pipe.scheduler.restart(make_kv(), PlanBuilder(2, 1))
    assert isinstance(recorder.recording().frames[-1], WorkerJoined)


def test_the_oldest_frames_are_dropped_one_by_one() -> None:
    recorder = FlightRecorder(max_bytes=300)
    for handle in range(4):
        recorder.put(Aborted(handle), 100)
    assert recorder.recording().frames == [Aborted(handle) for handle in (1, 2, 3)]
    recorder.put(Aborted(4), 250)
    assert recorder.recording().frames == [Aborted(4)]
    recorder.put(Aborted(5), 301)
    assert recorder.recording().frames == [], "a frame above the limit takes all the others along"


def test_logprobs_count_for_the_ring() -> None:
    """20 logprobs take many times the memory of their token."""
    plain, with_logprobs = FlightRecorder(), FlightRecorder()
    for recorder, logprobs in ((plain, None), (with_logprobs, 20)):
        pipe = recorded(recorder)
        add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 20, FACTS, logprobs=logprobs))
        pipe.run()
    assert with_logprobs._num_bytes - plain._num_bytes == 20 * 21 * 8


def test_a_recording_survives_its_encoding() -> None:
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    some_work(pipe)
    pipe.scheduler.restart(make_kv(), PlanBuilder(2, 1))
    recording = recorder.recording()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(recording), type=Recording) == recording


def test_the_names_in_the_file_are_those_of_its_version() -> None:
    """A file of this version may have been written by an older tandem: its names do not change with the code's."""
    recorder = FlightRecorder()
    pipe = recorded(recorder)
    add_all(pipe.scheduler, make_core_request(0, [1, 2, 3], 1, grammar="1"))
    prepare_all(pipe.scheduler, pipe.worker)
    pipe.run()
    pipe.scheduler.abort(0)
    pipe.scheduler.reset_prefix_cache()
    content = msgspec.msgpack.decode(msgspec.msgpack.encode(recorder.recording()))
    assert content["version"] == VERSION == 6
    frames = {frame["type"]: set(frame) - {"type"} for frame in content["frames"]}
    assert frames == {
        "worker": {
            "epoch",
            "num_blocks",
            "block_size",
            "kv_groups",
            "prefix_caching",
            "limits",
            "waiting",
            "free_slots",
            "is_death",
        },
        "add": {"request"},
        "prepare": set(),
        "prepared": {"handle", "error", "is_complete"},
        "plan": {"plan"},
        "result": {"result"},
        "abort": {"handle"},
        "reset": set(),
    }
    (added,) = (frame["request"] for frame in content["frames"] if frame["type"] == "add")
    assert len(added) == 18 and added[0] == 0 and unpack_i32(added[1]).tolist() == [1, 2, 3]
