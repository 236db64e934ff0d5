"""Requests through scheduler and model runner as the server runs them: the next step is planned and launched while one
runs. Without wires and other processes, so that what is measured is the worker and the scheduler."""

import time
from collections import deque
from dataclasses import dataclass

from services.worker.model_runner import Launched
from tests.worker.in_process import InProcess

STEPS_IN_FLIGHT = 2


@dataclass
class Ran:
    """Seconds. `kernels`: in which the device had work, by its own clock. `host`: in which this thread worked.

    The host plans and launches steps, makes a step that is done into a result, and takes that in. Its wait for a step
    to be done does not count, but whatever makes it wait within a launch would: a full queue, a copy that is not
    asynchronous. The device is idle as soon as a step's share of `host` is longer than its kernels.
    """

    wall: float = 0.0
    kernels: float = 0.0
    host: float = 0.0
    steps: int = 0

    @property
    def wait_share(self) -> float:
        """Of the time between a step's last kernel and the next one's first, in all of the time."""
        return 1.0 - self.kernels / self.wall

    @property
    def host_ms(self) -> float:
        """Milliseconds of the host in one step."""
        return 1000 * self.host / self.steps


def run_steps(engine: InProcess, count: int | None = None) -> Ran:
    """So many steps, or until nothing is left to do; none is in flight before and after."""
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
