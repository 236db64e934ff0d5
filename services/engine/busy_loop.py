"""The engine's core loop. It runs in a thread of its own, without asyncio, and alone uses the scheduler.

One iteration (`BusyLoop._step`):
1. Apply the commands that other threads have queued: add, abort, reset the prefix cache. Apply the answers of the
   worker's preparer, and send it the requests that it is to prepare next.
2. Call `schedule()`, and send the plan, if there is one, to the worker.
3. If enough steps are in flight, or there is no plan, wait for the oldest result.
4. Call `update()` with that result, and pass the events to the callbacks. While it waits, it repeats 1.
With no plan and no step in flight, it waits for a command instead of 3 and 4.

With asynchronous scheduling up to two steps are in flight: the worker has plan N+1 before result N is back.
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
from engine_core.result_check import ResultCheck, ResultRows
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_deadline import StepDeadlines, Work, work_of
from engine_core.step_plan import BadMessage, StepPlan, StepResult
from engine_core.worker_messages import ModelFacts, Register
from services.engine.worker_link import WorkerGone, WorkerLink
from services.telemetry.spans import now

GRACE_SECONDS = 2.0  # after a step's deadline, in which the worker's own watchdog can end it


@dataclass(frozen=True)
class BusyLoopConfig:
    """The options of the engine that concern steps."""

    scheduler: SchedulerConfig
    prefix_caching: bool
    steps_in_flight: int  # 2: asynchronous scheduling; 1: the next plan is made after the last result
    step_timeout: float  # seconds; a step with much work, or one of the worker's first, has a later deadline


@dataclass(frozen=True)
class ResetPrefixCache:
    """The command to empty the prefix cache. `done` is called from the loop's thread once it is empty."""

    done: Callable[[], None]


@dataclass(frozen=True)
class StepTimes:
    """When one step was planned and done, in nanoseconds since the epoch, and its size."""

    planned: int  # before `schedule()`
    done: int  # its result has arrived
    num_tokens: int  # computed, prompt tokens included, and the first token of each answer, as vLLM counts


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in flight: its plan is sent, its result is not back."""

    plan: StepPlan
    planned: int  # nanoseconds since the epoch
    work: Work
    rows: ResultRows


@dataclass(frozen=True)
class Callbacks:
    """Functions that the loop's thread calls. Each must return at once, for example by a call into the event loop."""

    registered: Callable[[ModelFacts], None]  # a worker is ready
    lost: Callable[[str], None]  # the worker is gone, and why; `registered` is called again with the next one
    # After each step (with its StepTimes), batch of commands (None) and registration (None).
    published: Callable[[StepEvents, SchedulerStats, StepTimes | None], None]
    failed: Callable[[Exception], None]  # the loop has ended with this error
    beat: Callable[[], None] = lambda: None  # called in every turn, at least twice a second
    pause: Callable[[], None] = lambda: None  # called before what may take longer than that; a beat follows


class BusyLoop:
    def __init__(self, link: WorkerLink, config: BusyLoopConfig, recorder: FlightRecorder | None = None) -> None:
        """The loop's end closes `link`. `recorder` records the calls of the scheduler; None: nothing is recorded."""
        self._config = config
        self._recorder = recorder
        self._in_flight: deque[_Step] = deque()  # oldest first
        self._idle = True  # the last `schedule()` returned no plan, and no step was in flight
        self._began = 0.0  # when the worker began the oldest step in flight, on the monotonic clock
        self._deadlines = StepDeadlines(config.step_timeout)
        self._check: ResultCheck | None = None  # None until a worker registers
        self._link = link
        self._commands: deque[Request | int | ResetPrefixCache] = deque()  # an int is a handle to abort
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="busy-loop", daemon=True)
        self._callbacks: Callbacks  # set by `start`

    def start(self, callbacks: Callbacks) -> None:
        """Starts the thread. `add`, `abort` and `reset_prefix_cache` may be called earlier: their commands wait."""
        self._callbacks = callbacks
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
        """Ends the thread, and returns once it has ended. Results of steps in flight are not awaited."""
        self._stopping = True
        self._link.wake()
        self._thread.join()

    def _run(self) -> None:
        """Serves one worker after another, until `stop` or an error, which `failed` gets; then closes the link."""
        scheduler: Scheduler | None = None
        try:
            while not self._stopping:
                try:
                    scheduler = self._wait_for_worker(scheduler)
                    while not self._stopping and scheduler is not None:
                        self._step(scheduler)
                except WorkerGone as gone:
                    self._callbacks.lost(self._overrun() or str(gone))  # a worker that hangs is ended by its watchdog
                    self._in_flight.clear()
        except Exception as error:
            self._callbacks.failed(error)
        finally:
            self._link.close()

    def _step(self, scheduler: Scheduler) -> None:
        """Runs one iteration, as the module describes it. Raises WorkerGone."""
        self._callbacks.beat()
        self._apply_commands(scheduler)
        self._exchange_grammars(scheduler)
        self._callbacks.beat()
        planned = now()
        plan = scheduler.schedule()
        if plan is not None:
            plan.was_runnable = not self._idle
            self._send(plan, planned, scheduler.result_rows(plan))
        self._idle = plan is None and not self._in_flight
        if len(self._in_flight) >= self._config.steps_in_flight or (self._in_flight and plan is None):
            self._take_result(scheduler)
        elif plan is None and self._link.poll_result() is not None:
            raise WorkerGone("the worker sent a result while no step was in flight")

    def _send(self, plan: StepPlan, planned: int, rows: ResultRows) -> None:
        """Sets the plan's deadline and sends the plan. `planned`: ns since the epoch. Raises WorkerGone."""
        work = work_of(plan)
        plan.deadline_ms = int(1000 * self._deadlines.deadline(work))
        self._link.send(plan)
        if not self._in_flight:
            self._began = time.monotonic()
        self._in_flight.append(_Step(plan, planned, work, rows))

    def _take_result(self, scheduler: Scheduler) -> None:
        """Waits for the result of the oldest step, updates the scheduler with it, and publishes the events.

        Raises WorkerGone when the step overruns its deadline by GRACE_SECONDS, the result is wrong, or the worker is
        lost. Returns without a result when the loop stops. The worker runs its plans in the order sent.
        """
        step = self._in_flight[0]
        while not self._stopping:
            self._callbacks.beat()
            result = self._link.poll_result()
            if result is not None and result.step_id == step.plan.step_id:
                self._check_result(result, step)
                self._in_flight.popleft()
                self._measure(step)
                times = StepTimes(step.planned, now(), step.work.tokens + step.rows.num_first_tokens)
                self._callbacks.published(scheduler.update(result), scheduler.stats(), times)
                return
            if overrun := self._overrun(GRACE_SECONDS):
                self._link.drop_worker()
                raise WorkerGone(overrun)
            self._apply_commands(scheduler)
            self._exchange_grammars(scheduler)

    def _check_result(self, result: StepResult, step: _Step) -> None:
        """Drops the worker and raises WorkerGone when the result does not fit the step's plan."""
        assert self._check is not None
        try:
            self._check(result, step.rows)
        except BadMessage as bad:
            self._link.refuse(str(bad))

    def _measure(self, step: _Step) -> None:
        """Records the step's running time, from which later deadlines are computed. The next step's time starts now."""
        done = time.monotonic()
        self._deadlines.measured(step.work, done - self._began)
        self._began = done

    def _overrun(self, grace: float = 0.0) -> str:
        """Returns an error message if the oldest step has reached its deadline plus `grace` seconds, else ""."""
        if not self._in_flight:
            return ""
        step, seconds = self._in_flight[0], time.monotonic() - self._began
        if seconds < step.plan.deadline_ms / 1000 + grace:
            return ""
        return (
            f"the worker hangs: step {step.plan.step_id} ({step.work.tokens} tokens) has run for {seconds:.1f} s,"
            f" and its deadline is {step.plan.deadline_ms / 1000:.1f} s"
        )

    def _apply_commands(self, scheduler: Scheduler) -> None:
        """Applies the queued commands, if any, in order, and publishes the Finished events of the requests they end."""
        if not self._commands:
            return
        events = StepEvents()
        while self._commands:
            self._callbacks.beat()
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

    def _exchange_grammars(self, scheduler: Scheduler) -> None:
        """Applies what the worker's preparer has answered, and sends it the requests that it is to prepare next.

        Raises WorkerGone when it is no longer connected, or hangs: a grammar takes longer than a step may.
        """
        preparer = self._link.preparer
        if preparer is None:
            return
        events = StepEvents()
        for answer in preparer.take():
            finished = scheduler.prepared(answer.handle, answer.error, is_complete=answer.is_complete)
            if finished is not None:
                events.finished.append(finished)
        if events.finished:  # before anything that may raise: the scheduler has forgotten them
            self._callbacks.published(events, scheduler.stats(), None)
        for request in scheduler.prepare():
            self._link.prepare(request)
        if (seconds := preparer.busy_seconds()) > self._config.step_timeout:
            self._link.refuse(f"it has prepared one grammar for {seconds:.1f} s", "hangs")

    def _wait_for_worker(self, scheduler: Scheduler | None) -> Scheduler | None:
        """Waits until a worker registers; returns the scheduler for it, or None when the process stops.

        `scheduler` is that of the earlier workers, None before the first. It is kept and restarted: its requests wait,
        and are computed again. Commands are applied to it meanwhile; before the first worker they wait. Raises
        WorkerGone for unusable facts, or if the worker is lost before it registers.
        """
        registration: Register | None = None
        while registration is None:
            if self._stopping:
                return None
            self._callbacks.beat()
            if scheduler is not None:
                self._apply_commands(scheduler)
            registration = self._link.poll_registration()
        facts = registration.facts
        self._callbacks.pause()  # the blocks of a large KV cache take seconds to make
        self._check = ResultCheck(facts.vocab_size)
        try:
            kv = KVCacheManager(facts.num_blocks, facts.block_size, facts.kv_groups, self._config.prefix_caching)
        except ValueError as error:
            self._link.refuse(str(error))
        self._link.accept(facts)
        builder = PlanBuilder(registration.epoch, len(facts.kv_groups))
        self._deadlines.new_worker()
        self._idle = True
        events = StepEvents()
        if scheduler is None:
            scheduler = self._new_scheduler(kv, builder)
        else:
            events.finished += scheduler.restart(kv, builder, is_death=not self._link.is_intact)
        self._callbacks.registered(facts)
        self._callbacks.published(events, scheduler.stats(), None)
        self._callbacks.beat()
        return scheduler

    def _new_scheduler(self, kv: KVCacheManager, builder: PlanBuilder) -> Scheduler:
        if self._recorder is None:
            return Scheduler(kv, builder, self._config.scheduler)
        return RecordedScheduler(kv, builder, self._config.scheduler, self._recorder)
