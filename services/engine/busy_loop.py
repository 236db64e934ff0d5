"""The loop that keeps the accelerator busy: commands in, schedule, send, receive, update, events out. No asyncio here.

It runs in a thread of its own and owns the scheduler: nobody else touches it. What it has to tell goes to one callback.
Under asynchronous scheduling the next plan is with the worker before the result of the last one is back.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine_core.events import SchedulerStats, StepEvents
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Limits, Scheduler
from engine_core.step_plan import StepPlan, unpack_i32
from engine_core.worker_messages import EngineLimits, ModelFacts, Register
from services.engine.worker_link import WorkerGone, WorkerLink
from services.tracing import now


@dataclass(frozen=True)
class Rules:
    """How this engine schedules."""

    limits: Limits
    prefix_caching: bool
    steps_in_flight: int  # 2: the next plan is made while the last one runs; 1: the plain loop


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


@dataclass(frozen=True)
class Callbacks:
    """Called from the loop's thread; each only hands over to another thread."""

    registered: Callable[[ModelFacts], None]
    lost: Callable[[str], None]  # the worker is gone; `registered` follows once there is another one
    published: Callable[[StepEvents, SchedulerStats, StepTimes | None], None]
    failed: Callable[[Exception], None]


class BusyLoop:
    def __init__(self, endpoint: str, limits: EngineLimits, rules: Rules, callbacks: Callbacks) -> None:
        self._limits = limits
        self._rules = rules
        self._callbacks = callbacks
        self._in_flight: deque[tuple[StepPlan, int]] = deque()  # plans without their result, and when they were made
        self._link = WorkerLink(endpoint, limits)
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
                    self._in_flight.clear()
                    self._callbacks.lost(str(gone))
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
            self._link.send(plan)
            self._in_flight.append((plan, planned))
        if len(self._in_flight) >= self._rules.steps_in_flight or (self._in_flight and plan is None):
            self._take_result(scheduler)
        elif plan is None and self._link.poll_result() is not None:
            raise WorkerGone("the worker sent a result that nobody asked for")

    def _take_result(self, scheduler: Scheduler) -> None:
        """The oldest one's; a worker runs its plans in order."""
        plan, planned = self._in_flight[0]
        while not self._stopping:
            result = self._link.poll_result()
            if result is not None and result.step_id == plan.step_id:
                self._in_flight.popleft()
                times = StepTimes(planned, now(), int(unpack_i32(plan.num_new_tokens).sum()))
                self._callbacks.published(scheduler.update(result), scheduler.stats(), times)
                return

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
        kv = KVCacheManager(facts.num_blocks, facts.block_size, facts.kv_groups, self._rules.prefix_caching)
        builder = PlanBuilder(registration.epoch, len(facts.kv_groups))
        self._callbacks.registered(facts)
        events = StepEvents()
        if scheduler is None:
            scheduler = Scheduler(kv, builder, self._rules.limits)
        else:
            events.finished += scheduler.restart(kv, builder)
        self._callbacks.published(events, scheduler.stats(), None)
        return scheduler
