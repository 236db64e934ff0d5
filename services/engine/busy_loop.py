"""The loop that keeps the accelerator busy: commands in, schedule, send, receive, update, events out. No asyncio here.

It runs in a thread of its own and owns the scheduler: nobody else touches it. What it has to tell goes to one callback.
Under asynchronous scheduling the next plan is with the worker before the result of the last one is back.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine_core.events import SchedulerStats, StepEvents
from engine_core.flight_recorder import FlightRecorder, RecordedScheduler
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.result_check import ResultCheck, SampledRows
from engine_core.scheduler import Scheduler, SchedulerConfig
from engine_core.step_deadline import StepDeadlines, Work, work_of
from engine_core.step_plan import BadMessage, StepPlan, StepResult
from engine_core.worker_messages import ModelFacts, Register
from services.engine.worker_link import WorkerGone, WorkerLink
from services.telemetry.spans import now

GRACE_SECONDS = 2.0  # beyond its deadline, in which a worker that hangs ends by itself


@dataclass(frozen=True)
class BusyLoopConfig:
    """How this engine schedules."""

    limits: SchedulerConfig
    prefix_caching: bool
    steps_in_flight: int  # 2: the next plan is made while the last one runs; 1: the plain loop
    step_timeout: float  # seconds that every step may take; long ones get more


@dataclass(frozen=True)
class ResetPrefixCache:
    """A command; `done` is called from the loop's thread."""

    done: Callable[[], None]


@dataclass(frozen=True)
class StepTimes:
    """When a step was planned, and when its result was there, in nanoseconds since the epoch; and what it computed."""

    planned: int
    done: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A plan without its result."""

    plan: StepPlan
    planned: int  # nanoseconds since the epoch
    work: Work
    rows: SampledRows


@dataclass(frozen=True)
class Callbacks:
    """Called from the loop's thread; each only hands over to another thread."""

    registered: Callable[[ModelFacts], None]
    lost: Callable[[str], None]  # the worker is gone; `registered` follows once there is another one
    published: Callable[[StepEvents, SchedulerStats, StepTimes | None], None]
    failed: Callable[[Exception], None]


class BusyLoop:
    def __init__(
        self,
        link: WorkerLink,
        config: BusyLoopConfig,
        callbacks: Callbacks,
        recorder: FlightRecorder | None = None,
    ) -> None:
        """It closes the link at its end."""
        self._config = config
        self._callbacks = callbacks
        self._recorder = recorder
        self._in_flight: deque[_Step] = deque()
        self._idle = True  # no request could run when the last plan was asked for
        self._began = 0.0  # when the worker began the oldest of them, on the monotonic clock
        self._deadlines = StepDeadlines(config.step_timeout)
        self._check: ResultCheck | None = None  # once there is a worker
        self._link = link
        self._commands: deque[Request | int | ResetPrefixCache] = deque()  # an int is a handle to abort
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="busy-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, request: Request) -> None:
        self._commands.append(request)
        self._link.wake()

    def abort(self, handle: int) -> None:
        self._commands.append(handle)
        self._link.wake()

    def reset_prefix_cache(self, done: Callable[[], None]) -> None:
        self._commands.append(ResetPrefixCache(done))
        self._link.wake()

    def stop(self) -> None:
        """Returns once the thread has ended; a step in flight is not waited for."""
        self._stopping = True
        self._link.wake()
        self._thread.join()

    def _run(self) -> None:
        scheduler: Scheduler | None = None
        try:
            while not self._stopping:
                try:
                    scheduler = self._wait_for_worker(scheduler)
                    while not self._stopping and scheduler is not None:
                        self._step(scheduler)
                except WorkerGone as gone:
                    self._callbacks.lost(self._overrun() or str(gone))
                    self._in_flight.clear()
        except Exception as error:
            self._callbacks.failed(error)
        finally:
            self._link.close()

    def _step(self, scheduler: Scheduler) -> None:
        """Sends a plan; takes a result where one has to come first. Without work, waits for a command."""
        self._apply_commands(scheduler)
        planned = now()
        plan = scheduler.schedule()
        if plan is not None:
            plan.continues = not self._idle
            self._send(plan, planned, scheduler.sampled_rows(plan))
        self._idle = plan is None and not self._in_flight
        if len(self._in_flight) >= self._config.steps_in_flight or (self._in_flight and plan is None):
            self._take_result(scheduler)
        elif plan is None and self._link.poll_result() is not None:
            raise WorkerGone("the worker sent a result that nobody asked for")

    def _send(self, plan: StepPlan, planned: int, rows: SampledRows) -> None:
        work = work_of(plan)
        plan.deadline_ms = int(1000 * self._deadlines.deadline(work))
        self._link.send(plan)
        if not self._in_flight:
            self._began = time.monotonic()
        self._in_flight.append(_Step(plan, planned, work, rows))

    def _take_result(self, scheduler: Scheduler) -> None:
        """The oldest one's; a worker runs its plans in order."""
        step = self._in_flight[0]
        while not self._stopping:
            result = self._link.poll_result()
            if result is not None and result.step_id == step.plan.step_id:
                self._check_result(result, step)
                self._in_flight.popleft()
                self._measure(step)
                times = StepTimes(step.planned, now(), step.work.tokens)
                self._callbacks.published(scheduler.update(result), scheduler.stats(), times)
                return
            if overrun := self._overrun(GRACE_SECONDS):
                self._link.give_up()
                raise WorkerGone(overrun)

    def _check_result(self, result: StepResult, step: _Step) -> None:
        """Raises WorkerGone for a malformed one."""
        assert self._check is not None
        try:
            self._check(result, step.rows)
        except BadMessage as bad:
            self._link.refuse(str(bad))

    def _measure(self, step: _Step) -> None:
        """The worker is done with it, and begins the next one."""
        done = time.monotonic()
        self._deadlines.measured(step.work, done - self._began)
        self._began = done

    def _overrun(self, grace: float = 0.0) -> str:
        """What is to be said of the oldest step once it has had its time, and `grace` seconds; before, nothing."""
        if not self._in_flight:
            return ""
        step, seconds = self._in_flight[0], time.monotonic() - self._began
        if seconds < step.plan.deadline_ms / 1000 + grace:
            return ""
        return (
            f"the worker hangs: step {step.plan.step_id} ({step.work.tokens} tokens) took {seconds:.1f} s, where"
            f" {step.plan.deadline_ms / 1000:.1f} s is its deadline"
        )

    def _apply_commands(self, scheduler: Scheduler) -> None:
        if not self._commands:
            return
        events = StepEvents()
        while self._commands:
            command = self._commands.popleft()
            finished = None
            match command:
                case Request():
                    finished = scheduler.add(command)
                case ResetPrefixCache():
                    scheduler.reset_prefix_cache()
                    command.done()
                case handle:
                    finished = scheduler.abort(handle)
            if finished is not None:
                events.finished.append(finished)
        self._callbacks.published(events, scheduler.stats(), None)

    def _wait_for_worker(self, scheduler: Scheduler | None) -> Scheduler | None:
        """The scheduler, once there is a worker for it. Requests come and go meanwhile. None: this process stops."""
        registration: Register | None = None
        while registration is None:
            if self._stopping:
                return None
            if scheduler is not None:
                self._apply_commands(scheduler)
            registration = self._link.poll_registration()
        facts = registration.facts
        self._check = ResultCheck(facts.vocab_size)
        try:
            kv = KVCacheManager(facts.num_blocks, facts.block_size, facts.kv_groups, self._config.prefix_caching)
        except ValueError as error:
            self._link.refuse(str(error))
        builder = PlanBuilder(registration.epoch, len(facts.kv_groups))
        self._deadlines.new_worker()
        self._idle = True
        self._callbacks.registered(facts)
        events = StepEvents()
        if scheduler is None:
            scheduler = self._new_scheduler(kv, builder)
        else:
            events.finished += scheduler.restart(kv, builder)
        self._callbacks.published(events, scheduler.stats(), None)
        return scheduler

    def _new_scheduler(self, kv: KVCacheManager, builder: PlanBuilder) -> Scheduler:
        if self._recorder is None:
            return Scheduler(kv, builder, self._config.limits)
        return RecordedScheduler(kv, builder, self._config.limits, self._recorder)
