"""Remembers what went into a scheduler and what came out, the newest last, so that a run can be gone through again.

A scheduler is a function of what it is told, so that is all there is to keep. Nothing is copied or encoded until
somebody asks: plans and results never change, and a request's tokens are only ever appended to.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

from engine_core.events import Finished, StepEvents
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Scheduler, SchedulerConfig
from engine_core.step_plan import SamplingParams, StepPlan, StepResult, pack_i32

VERSION = 1
MAX_BYTES = 16 * 2**20  # of plans, results and tokens that are held, about


class RecordedRequest(msgspec.Struct, array_like=True):
    handle: int
    token_ids: bytes  # known then: prompt, and output if it was resumed or ran before
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


class WorkerJoined(msgspec.Struct, tag="worker"):
    """Nothing is computed and nobody runs: whoever replays can begin here."""

    epoch: int
    num_blocks: int
    block_size: int
    kv_groups: tuple[str, ...]
    prefix_caching: bool
    config: SchedulerConfig = msgspec.field(name="limits")
    waiting: list[RecordedRequest]
    free_slots: list[int]  # the next one last


class Added(msgspec.Struct, tag="add"):
    request: RecordedRequest


class Aborted(msgspec.Struct, tag="abort"):
    handle: int


class PrefixCacheReset(msgspec.Struct, tag="reset"):
    pass


class Planned(msgspec.Struct, tag="plan"):
    """The scheduler was asked for a plan; None where there was nothing to compute, or it did not return."""

    plan: StepPlan | None


class Resulted(msgspec.Struct, tag="result"):
    result: StepResult


Frame = WorkerJoined | Added | Aborted | PrefixCacheReset | Planned | Resulted


class Recording(msgspec.Struct):
    version: int
    frames: list[Frame]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A request as it was when it was seen."""

    request: Request
    num_tokens: int
    num_cached_tokens: int | None
    num_preemptions: int
    strikes: int

    @staticmethod
    def now(request: Request) -> "_Seen":
        return _Seen(request, request.num_tokens, request.num_cached_tokens, request.num_preemptions, request.strikes)

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
        )


class FlightRecorder:
    """A ring of so many bytes. One thread puts; any other may ask for the recording meanwhile."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._ring: deque[tuple[Frame | _Seen, tuple[_Seen, ...], int]] = deque()  # frame, who waited, bytes

    def put(self, frame: Frame | _Seen, num_bytes: int, waiting: tuple[_Seen, ...] = ()) -> None:
        self._ring.append((frame, waiting, num_bytes))
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._ring.popleft()[-1]

    def recording(self) -> Recording:
        frames: list[Frame] = []
        for frame, waiting, _ in list(self._ring):  # copied in one step: no other thread gets a turn in between
            if isinstance(frame, WorkerJoined):
                frames.append(msgspec.structs.replace(frame, waiting=[seen.recorded() for seen in waiting]))
            else:
                frames.append(Added(frame.recorded()) if isinstance(frame, _Seen) else frame)
        return Recording(VERSION, frames)


class RecordedScheduler(Scheduler):
    """What goes in is put down before anything is done with it, so that what breaks is on record."""

    def __init__(
        self, kv: KVCacheManager, builder: PlanBuilder, config: SchedulerConfig, recorder: FlightRecorder
    ) -> None:
        super().__init__(kv, builder, config)
        self._recorder = recorder
        self._record_worker()

    def add(self, request: Request) -> Finished | None:
        self._recorder.put(_Seen.now(request), 40 * request.num_tokens)  # as Python ints, and once more in a plan
        return super().add(request)

    def abort(self, handle: int) -> Finished | None:
        self._recorder.put(Aborted(handle), 100)
        return super().abort(handle)

    def reset_prefix_cache(self) -> None:
        self._recorder.put(PrefixCacheReset(), 100)
        super().reset_prefix_cache()

    def restart(self, kv: KVCacheManager, builder: PlanBuilder) -> list[Finished]:
        ended = super().restart(kv, builder)
        self._record_worker()
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
        self._recorder.put(Resulted(result), num_bytes)  # with the plan that it answers
        return super().update(result)

    def _record_worker(self) -> None:
        frame = WorkerJoined(
            epoch=self._builder.epoch,
            num_blocks=self.kv.pool.num_blocks,
            block_size=self.kv.block_size,
            kv_groups=self.kv.kv_groups,
            prefix_caching=self.kv.prefix_caching,
            config=self._config,
            waiting=[],
            free_slots=list(self.batch.free_slots),
        )
        self._recorder.put(frame, 500, tuple(_Seen.now(request) for request in self.waiting))
