"""Requests through scheduler and model runner as the server runs them: the next step is planned and launched while one
runs. Without wires and other processes, so that what is measured is the worker."""

import time
from collections import deque
from dataclasses import dataclass

from services.worker.model_runner import Launched
from tests.worker.in_process import InProcess

STEPS_IN_FLIGHT = 2


@dataclass
class Ran:
    """Seconds; `kernels`: in which the device had work, by its own clock."""

    wall: float = 0.0
    kernels: float = 0.0
    steps: int = 0

    @property
    def wait_share(self) -> float:
        """Of the time between a step's last kernel and the next one's first, in all of the time."""
        return 1.0 - self.kernels / self.wall


def run_steps(engine: InProcess, count: int | None = None) -> Ran:
    """So many steps, or until nothing is left to do; none is in flight before and after."""
    ran, in_flight = Ran(), deque[Launched]()
    began = time.perf_counter()
    while True:
        while len(in_flight) < STEPS_IN_FLIGHT and (count is None or ran.steps + len(in_flight) < count):
            plan = engine.scheduler.schedule()
            if plan is None:
                break
            in_flight.append(engine.runner.launch(plan))
        if not in_flight:
            ran.wall = time.perf_counter() - began
            return ran
        launched = in_flight.popleft()
        engine.take(engine.runner.collect(launched))
        ran.kernels += engine.runner.kernel_nanoseconds(launched) * 1e-9
        ran.steps += 1
