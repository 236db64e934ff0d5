"""Replays a recording on a new scheduler, and compares every plan with the recorded one, byte by byte.

Only the two fields that depend on measured times are not compared: deadline_ms and was_runnable.
"""

import msgspec

from engine_core.flight_recorder import (
    Aborted,
    Added,
    Planned,
    PrefixCacheReset,
    PreparationEnded,
    PreparationsBegun,
    RecordedRequest,
    Recording,
    Resulted,
    WorkerJoined,
)
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Scheduler
from engine_core.step_plan import StepPlan, unpack_i32


class NotReplayable(Exception):
    """The recording has no WorkerJoined frame to start from, or a version that this code does not read."""


class ReplayDiffers(Exception):
    """A plan of the replay differs from the recorded one. The message has the step and both plans."""


def replay(recording: Recording) -> int:
    """Repeats the recorded calls on a new scheduler, from the first WorkerJoined on. Returns the number of plans made.

    Raises NotReplayable, ReplayDiffers, and any exception of the scheduler: a recorded failure happens again.
    """
    frames = recording.frames
    start = next((index for index, frame in enumerate(frames) if isinstance(frame, WorkerJoined)), None)
    if start is None:
        raise NotReplayable("the recording begins in the middle: it has no frame of a worker that joined")
    joined = frames[start]
    assert isinstance(joined, WorkerJoined)
    scheduler = _make_scheduler(joined)
    num_plans = 0
    for frame in frames[start + 1 :]:
        match frame:
            case Added(request):
                scheduler.add(_request(request))
            case Aborted(handle):
                scheduler.abort(handle)
            case PreparationsBegun():
                scheduler.prepare()
            case PreparationEnded(handle, error, is_complete):
                scheduler.prepared(handle, error, is_complete=is_complete)
            case PrefixCacheReset():
                scheduler.reset_prefix_cache()
            case WorkerJoined():
                scheduler.restart(_kv(frame), PlanBuilder(frame.epoch, len(frame.kv_groups)), is_death=frame.is_death)
            case Planned(plan):
                _compare(plan, scheduler.schedule())
                num_plans += plan is not None
            case Resulted(result):
                scheduler.update(result)
    return num_plans


def _make_scheduler(joined: WorkerJoined) -> Scheduler:
    builder = PlanBuilder(joined.epoch, len(joined.kv_groups))
    scheduler = Scheduler(_kv(joined), builder, joined.config)
    scheduler.batch.free_slots[:] = joined.free_slots
    for request in joined.waiting:
        scheduler.add(_request(request))
    return scheduler


def _kv(joined: WorkerJoined) -> KVCacheManager:
    return KVCacheManager(joined.num_blocks, joined.block_size, joined.kv_groups, joined.prefix_caching)


def _request(recorded: RecordedRequest) -> Request:
    return Request(
        handle=recorded.handle,
        sampling=recorded.sampling,
        seed=recorded.seed,
        choice=recorded.choice,
        token_ids=unpack_i32(recorded.token_ids).tolist(),
        num_prompt_tokens=recorded.num_prompt_tokens,
        root_hash=recorded.root_hash,
        priority=recorded.priority,
        num_cached_tokens=recorded.num_cached_tokens,
        num_preemptions=recorded.num_preemptions,
        strikes=recorded.strikes,
        traceparent=recorded.traceparent,
        grammar=recorded.grammar,
        preparation_deaths=recorded.preparation_deaths,
        next_prompt_logprob=recorded.next_prompt_logprob,
        trial=recorded.trial,
        trial_end=recorded.trial_end,
        arrival=recorded.arrival,
    )


def _compare(recorded: StepPlan | None, replayed: StepPlan | None) -> None:
    encoded, encoded_again = (msgspec.msgpack.encode(_without_timing(plan)) for plan in (recorded, replayed))
    if encoded != encoded_again:
        raise ReplayDiffers(f"step {(recorded or replayed).step_id}: recorded {recorded}, replayed {replayed}")  # type: ignore[union-attr]


def _without_timing(plan: StepPlan | None) -> StepPlan | None:
    """Returns the plan without the fields that the busy loop fills in from measured times."""
    return None if plan is None else msgspec.structs.replace(plan, deadline_ms=0, was_runnable=False)
