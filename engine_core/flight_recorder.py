"""Records the calls that change a scheduler, and its plans, the newest last, so that a run can be replayed.

A scheduler is a pure function of its calls, so nothing else is needed. Nothing is copied or encoded until recording()
is called: plans and results never change, and a request's tokens are only ever appended to.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

from engine_core.events import Finished, StepEvents
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import KvGroup
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import SamplingParams, StepPlan, StepResult, pack_i32

VERSION = 6  # 6: arrivals
MAX_BYTES = 16 * 2**20  # estimated memory of the ring: plans, results and tokens


class RecordedRequest(msgspec.Struct, array_like=True):
    """A request's state when a call was recorded: all that is needed to build an equal Request."""

    handle: int
    token_ids: bytes  # int32; prompt, then output of a request that was resumed or ran before
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    choice: int
    root_hash: bytes
    priority: int
    num_cached_tokens: int | None
    num_preemptions: int
    strikes: int
    traceparent: str
    grammar: str
    preparation_deaths: int
    next_prompt_logprob: int = 1
    trial: int = 0
    trial_end: int = 0
    arrival: int = 0


class WorkerJoined(msgspec.Struct, tag="worker"):
    """A worker registered: its KV cache, the step limits, the waiting requests, the order of free slots.

    Nothing is computed and no request runs, so a replay can start at this frame.
    """

    epoch: int
    num_blocks: int
    block_size: int
    kv_groups: tuple[KvGroup, ...]
    prefix_caching: bool
    config: SchedulerConfig = msgspec.field(name="limits")
    waiting: list[RecordedRequest]
    free_slots: list[int]  # the last one is given out first
    is_death: bool = True  # of the worker before


class Added(msgspec.Struct, tag="add"):
    request: RecordedRequest


class Aborted(msgspec.Struct, tag="abort"):
    handle: int


class PreparationsBegun(msgspec.Struct, tag="prepare"):
    """A call of prepare()."""


class PreparationEnded(msgspec.Struct, tag="prepared"):
    """A call of prepared()."""

    handle: int
    error: str
    is_complete: bool


class PrefixCacheReset(msgspec.Struct, tag="reset"):
    pass


class Planned(msgspec.Struct, tag="plan"):
    """A call of schedule(), and the plan it returned: None if there was nothing to compute or the call raised."""

    plan: StepPlan | None


class Resulted(msgspec.Struct, tag="result"):
    result: StepResult


Frame = WorkerJoined | Added | Aborted | PreparationsBegun | PreparationEnded | PrefixCacheReset | Planned | Resulted


class Recording(msgspec.Struct):
    version: int
    frames: list[Frame]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A request's state at the time of a call, not yet encoded. Of `request`, only fields that never change, and the
    first `num_tokens` of token_ids, are read later."""

    request: Request
    num_tokens: int
    num_cached_tokens: int | None
    num_preemptions: int
    strikes: int
    preparation_deaths: int
    next_prompt_logprob: int
    trial: int
    trial_end: int

    @staticmethod
    def now(request: Request) -> "_Snapshot":
        return _Snapshot(
            request,
            request.num_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            request.strikes,
            request.preparation_deaths,
            request.next_prompt_logprob,
            request.trial,
            request.trial_end,
        )

    def recorded(self) -> RecordedRequest:
        request = self.request
        return RecordedRequest(
            handle=request.handle,
            token_ids=pack_i32(request.token_ids[: self.num_tokens]),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling=request.sampling,
            seed=request.seed,
            choice=request.choice,
            root_hash=request.root_hash,
            priority=request.priority,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            strikes=self.strikes,
            traceparent=request.traceparent,
            grammar=request.grammar,
            preparation_deaths=self.preparation_deaths,
            next_prompt_logprob=self.next_prompt_logprob,
            trial=self.trial,
            trial_end=self.trial_end,
            arrival=request.arrival,
        )


class FlightRecorder:
    """Keeps the newest frames, up to `max_bytes` as their callers estimate.

    One thread may call put(); any thread may call recording().
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._ring: deque[tuple[Frame | _Snapshot, tuple[_Snapshot, ...], int]] = deque()  # frame, waiting, bytes

    def put(self, frame: Frame | _Snapshot, num_bytes: int, waiting: tuple[_Snapshot, ...] = ()) -> None:
        """Appends a frame of about `num_bytes` of memory, and drops the oldest frames beyond the limit.

        `waiting` are the queued requests; only a WorkerJoined has any.
        """
        self._ring.append((frame, waiting, num_bytes))
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._ring.popleft()[-1]

    def recording(self) -> Recording:
        """Returns the frames in the ring, the oldest first."""
        frames: list[Frame] = []
        for frame, waiting, _ in list(self._ring):  # list() of a deque is atomic under the GIL: put() cannot interfere
            if isinstance(frame, WorkerJoined):
                frames.append(msgspec.structs.replace(frame, waiting=[request.recorded() for request in waiting]))
            else:
                frames.append(Added(frame.recorded()) if isinstance(frame, _Snapshot) else frame)
        return Recording(VERSION, frames)


class RecordedScheduler(Scheduler):
    """A Scheduler that puts each call that may change its state into `recorder`.

    A call is recorded before it runs, so that a call that raises is in the recording; a restart, after it ran.
    """

    def __init__(
        self, kv: KVCacheManager, builder: PlanBuilder, config: SchedulerConfig, recorder: FlightRecorder
    ) -> None:
        super().__init__(kv, builder, config)
        self._recorder = recorder
        self._record_worker()

    def add(self, request: Request) -> Finished | None:
        num_bytes = 40 * request.num_tokens + 2 * request.sampling.num_bytes  # of the lists here, and again in a plan
        self._recorder.put(_Snapshot.now(request), num_bytes + len(request.grammar))
        return super().add(request)

    def abort(self, handle: int) -> Finished | None:
        self._recorder.put(Aborted(handle), 100)
        return super().abort(handle)

    def prepare(self) -> list[Request]:
        if self.waiting.num_deferred:  # else the call changes nothing that a plan depends on
            self._recorder.put(PreparationsBegun(), 100)
        return super().prepare()

    def prepared(self, handle: int, error: str = "", *, is_complete: bool = False) -> Finished | None:
        self._recorder.put(PreparationEnded(handle, error, is_complete), 100 + len(error))
        return super().prepared(handle, error, is_complete=is_complete)

    def reset_prefix_cache(self) -> None:
        self._recorder.put(PrefixCacheReset(), 100)
        super().reset_prefix_cache()

    def restart(self, kv: KVCacheManager, builder: PlanBuilder, *, is_death: bool = True) -> list[Finished]:
        ended = super().restart(kv, builder, is_death=is_death)
        self._record_worker(is_death=is_death)
        return ended

    def schedule(self) -> StepPlan | None:
        if not self.has_unfinished:
            return super().schedule()
        frame = Planned(None)
        self._recorder.put(frame, 0)
        frame.plan = plan = super().schedule()
        return plan

    def update(self, result: StepResult) -> StepEvents:
        num_bytes = 500 + 12 * len(result.handles) + len(result.logprob_token_ids) + len(result.logprobs)
        num_bytes += sum([2 * len(one.logprobs) + len(one.ranks) for one in result.prompt_logprobs])
        self._recorder.put(Resulted(result), num_bytes)  # of the result and of its plan
        return super().update(result)

    def _record_worker(self, *, is_death: bool = False) -> None:
        frame = WorkerJoined(
            epoch=self._builder.epoch,
            num_blocks=self.kv.pool.num_blocks,
            block_size=self.kv.block_size,
            kv_groups=self.kv.kv_groups,
            prefix_caching=self.kv.prefix_caching,
            config=self._config,
            waiting=[],
            free_slots=list(self.batch.free_slots),
            is_death=is_death,
        )
        self._recorder.put(frame, 500, tuple(_Snapshot.now(request) for request in self.waiting))
