"""The loop that keeps the accelerator busy: commands in, schedule, send, receive, update, events out. No asyncio here.

It runs in a thread of its own and owns the scheduler: nobody else touches it. What it has to tell goes to one callback.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine_core.events import SchedulerStats, StepEvents
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Scheduler
from engine_core.step_plan import StepPlan
from engine_core.worker_messages import EngineLimits, ModelFacts, Register
from services.engine.worker_link import WorkerGone, WorkerLink
from services.tracing import now


@dataclass(frozen=True)
class StepTimes:
    """When a step was planned, and when its result was there; nanoseconds since the epoch."""

    planned: int
    done: int


@dataclass(frozen=True)
class Callbacks:
    """Called from the loop's thread; each only hands over to another thread."""

    registered: Callable[[ModelFacts], None]
    published: Callable[[StepEvents, SchedulerStats, StepTimes | None], None]
    failed: Callable[[Exception], None]


class BusyLoop:
    def __init__(self, endpoint: str, limits: EngineLimits, prefix_caching: bool, callbacks: Callbacks) -> None:
        self._limits = limits
        self._prefix_caching = prefix_caching
        self._callbacks = callbacks
        self._link = WorkerLink(endpoint, limits)
        self._commands: deque[Request | int] = deque()  # a request to add, or a handle to abort
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

    def stop(self) -> None:
        """Returns once the thread has ended; a step in flight is not waited for."""
        self._stopping = True
        self._link.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            scheduler = self._wait_for_worker()
            while not self._stopping and scheduler is not None:
                self._step(scheduler)
        except Exception as error:
            self._callbacks.failed(error)
        finally:
            self._link.close()

    def _step(self, scheduler: Scheduler) -> None:
        """One step; without work, waits for a command."""
        self._apply_commands(scheduler)
        planned = now()
        plan = scheduler.schedule()
        if plan is not None:
            self._link.send(plan)
            self._take_result(scheduler, plan, planned)
        elif self._link.poll_result() is not None:
            raise WorkerGone("the worker sent a result that nobody asked for")

    def _take_result(self, scheduler: Scheduler, plan: StepPlan, planned: int) -> None:
        while not self._stopping:
            result = self._link.poll_result()
            if result is not None and result.step_id == plan.step_id:
                times = StepTimes(planned, now())
                self._callbacks.published(scheduler.update(result), scheduler.stats(), times)
                return

    def _apply_commands(self, scheduler: Scheduler) -> None:
        if not self._commands:
            return
        events = StepEvents()
        while self._commands:
            command = self._commands.popleft()
            finished = scheduler.abort(command) if isinstance(command, int) else scheduler.add(command)
            if finished is not None:
                events.finished.append(finished)
        self._callbacks.published(events, scheduler.stats(), None)

    def _wait_for_worker(self) -> Scheduler | None:
        registration: Register | None = None
        while registration is None:
            if self._stopping:
                return None
            registration = self._link.poll_registration()
        facts = registration.facts
        kv = KVCacheManager(facts.num_blocks, facts.block_size, facts.kv_groups, self._prefix_caching)
        builder = PlanBuilder(registration.epoch, len(facts.kv_groups))
        scheduler = Scheduler(kv, builder, self._limits.max_num_seqs, self._limits.max_num_batched_tokens)
        self._callbacks.registered(facts)
        self._callbacks.published(StepEvents(), scheduler.stats(), None)
        return scheduler
