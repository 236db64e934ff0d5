"""Runs scheduler and model runner as the server does: the next step is planned and launched while one runs. In one
process, without sockets, so that only the worker and the scheduler are measured."""

import time
from collections import deque
from dataclasses import dataclass

from services.worker.model_runner import Launched
from tests.worker.in_process import InProcess

STEPS_IN_FLIGHT = 2


@dataclass
class Ran:
    """The times of `steps` steps in seconds: `wall` of the clock, `kernels` by the device's clock, `host` of the host
    thread's work.

    `kernels` is the sum over steps of the time between a step's first and last event; gaps between kernels are
    included. The host plans and launches steps, collects results and applies them. `host` excludes its wait for a
    finished step. It includes waits within a launch: a full queue, a synchronous copy. If `host` exceeds `kernels`, the
    device is idle between steps.
    """

    wall: float = 0.0
    kernels: float = 0.0
    host: float = 0.0
    steps: int = 0

    @property
    def wait_share(self) -> float:
        """Share of the wall time in which the device had no step, from 0 to 1. Gaps within a step do not count."""
        return 1.0 - self.kernels / self.wall

    @property
    def host_ms(self) -> float:
        """Milliseconds of host work in one step."""
        return 1000 * self.host / self.steps


def run_steps(engine: InProcess, count: int | None = None) -> Ran:
    """Runs `count` steps (None: any number), fewer if no request is left. Returns their times. No step is in flight
    before and after."""
    ran, in_flight = Ran(), deque[Launched]()
    began = time.perf_counter()
    while True:
        working = time.perf_counter()
        while len(in_flight) < STEPS_IN_FLIGHT and (count is None or ran.steps + len(in_flight) < count):
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
        ran.steps += 1
