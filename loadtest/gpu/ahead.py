"""Runs scheduler and model runner as the server does: the next step is planned and launched while one runs. In one
process, without sockets, so that only the worker and the scheduler are measured."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from services.worker.model_runner import Launched
from tests.worker.in_process import InProcess

STEPS_IN_FLIGHT = 2


@dataclass
class Ran:
    """The times of `steps` steps in seconds: `wall` of the clock, `kernels` by the device's clock, `host` of the host
    thread's work, and of it `launches`.

    `kernels` is the sum over steps of the time from the copy of a step's inputs to the end of its last kernel; gaps
    between kernels are included. The host plans and launches steps, collects results and applies them. `host` excludes
    its wait for a finished step. It includes waits within a launch: a full queue, a synchronous copy. `launches` is the
    sum over steps of the host's time between the same two events: if it nears `kernels`, steps are as long as the host
    takes to launch their kernels. If `host` exceeds `kernels`, the device is idle between steps.
    """

    wall: float = 0.0
    kernels: float = 0.0
    host: float = 0.0
    launches: float = 0.0
    steps: int = 0

    @property
    def ms(self) -> float:
        """Milliseconds of one step, by the clock."""
        return 1000 * self.wall / self.steps

    @property
    def wait_share(self) -> float:
        """Share of the wall time in which the device had no step, from 0 to 1. Gaps between the kernels of a step do
        not count; profile.py measures those."""
        return 1.0 - self.kernels / self.wall

    @property
    def host_ms(self) -> float:
        """Milliseconds of host work in one step."""
        return 1000 * self.host / self.steps

    @property
    def launch_ms(self) -> float:
        """Milliseconds of the host from the copy of a step's inputs to its last launch."""
        return 1000 * self.launches / self.steps


def run_steps(engine: InProcess, count: int | None = None, before_each: Callable[[int], None] | None = None) -> Ran:
    """Runs `count` steps (None: any number), fewer if no request is left. Returns their times. No step is in flight
    before and after.

    `before_each` is called with the number of the next step, from 0, before it is planned; its time is the host's.
    """
    ran, in_flight = Ran(), deque[Launched]()
    began = time.perf_counter()
    while True:
        working = time.perf_counter()
        while len(in_flight) < STEPS_IN_FLIGHT and (count is None or ran.steps + len(in_flight) < count):
            if before_each is not None:
                before_each(ran.steps + len(in_flight))
            plan = engine.scheduler.schedule()
            if plan is None:
                break
            in_flight.append(engine.runner.launch(plan))
        ran.host += time.perf_counter() - working
        if not in_flight:
            ran.wall = time.perf_counter() - began
            return ran
        launched = in_flight.popleft()
        launched.done.synchronize()
        working = time.perf_counter()
        engine.take(engine.runner.collect(launched))
        ran.host += time.perf_counter() - working
        ran.kernels += engine.runner.kernel_nanoseconds(launched) * 1e-9
        ran.launches += engine.runner.launch_nanoseconds(launched) * 1e-9
        ran.steps += 1
