"""`tandem bench engine`: the CPU time that the scheduler spends on a step, with a simulated worker.

A step is one thread's calls of add(), schedule() and update(). In steady decode every request gets one token per step.
Each needs a new block every BLOCK_SIZE steps; these steps differ between requests. With an output length, a new request
with a prompt of its own replaces each finished one. Waits and other processes are not measured.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import SamplingParams, StepResult
from loadtest.engine.simulated_worker import SimulatedWorker
from loadtest.flag_values import count

NUM_RUNNING = (64, 256, 1024)
BLOCK_SIZE = 16
WARM_UP_STEPS = 50
STEPS_IN_FLIGHT = 2
VOCAB_SIZE = 1000
WINDOW = 20  # consecutive steps of one simulation before the other one runs


class Simulation:
    """A scheduler with `num_running` requests at every step, and a simulated worker. Runs WARM_UP_STEPS steps at once.

    `num_steps`: the number of calls of step(), for which the KV cache has enough blocks. `output_len` 0: no request
    finishes.
    """

    def __init__(
        self, num_running: int, num_steps: int, prompt_len: int, output_len: int, prefix_caching: bool
    ) -> None:
        total = WARM_UP_STEPS + num_steps + STEPS_IN_FLIGHT
        num_blocks = num_running * (-(-(prompt_len + BLOCK_SIZE + (output_len or total)) // BLOCK_SIZE) + 2)
        kv = KVCacheManager(num_blocks, BLOCK_SIZE, (FULL,), prefix_caching)
        self._scheduler = Scheduler(
            kv, PlanBuilder(1, 1), SchedulerConfig(num_running, num_running * (prompt_len + BLOCK_SIZE))
        )
        self._worker = SimulatedWorker(num_running, np.arange(VOCAB_SIZE, dtype=np.int32))
        self._results: deque[StepResult] = deque()
        self._handles = itertools.count()
        self._prompt_len = prompt_len
        self._output_len = output_len or total + 1
        # The first requests have different lengths, so that requests finish in every step.
        self._arrived = [self._request(1 + index % output_len if output_len else 0) for index in range(num_running)]
        for _ in range(WARM_UP_STEPS):
            self.step()

    def step(self) -> float:
        """Runs one step. Returns the CPU seconds that the scheduler's calls took."""
        began = time.thread_time()
        for request in self._arrived:
            self._scheduler.add(request)
        plan = self._scheduler.schedule()
        planned = time.thread_time()
        assert plan is not None
        self._results.append(self._worker.execute(plan))
        self._arrived = []
        if len(self._results) < STEPS_IN_FLIGHT:
            return planned - began
        result = self._results.popleft()
        resumed = time.thread_time()
        events = self._scheduler.update(result)
        updated = time.thread_time()
        self._arrived = [self._request(0) for _ in events.finished]
        return planned - began + updated - resumed

    def _request(self, num_output: int) -> Request:
        """Returns a request with a new prompt and `num_output` output tokens; 0: the simulation's usual number."""
        handle = next(self._handles)
        length = self._prompt_len + handle % BLOCK_SIZE
        prompt = [(handle * 7919 + index * (handle // VOCAB_SIZE + 1)) % VOCAB_SIZE for index in range(length)]
        sampling = SamplingParams(max_tokens=num_output or self._output_len, temperature=0.0)
        return Request(handle, sampling, 0, 0, prompt, length, b"bench")


def step_times(num_running: int, num_steps: int, prompt_len: int, output_len: int, prefix_caching: bool) -> list[float]:
    """Returns the scheduler's CPU seconds in each of `num_steps` steps, after a warm-up."""
    simulation = Simulation(num_running, num_steps, prompt_len, output_len, prefix_caching)
    return [simulation.step() for _ in range(num_steps)]


def cost_of_prefix_caching(num_running: int, num_steps: int, prompt_len: int, output_len: int) -> tuple[float, float]:
    """Returns the scheduler's CPU seconds per step: (without, with prefix caching).

    Both simulations run in turn, WINDOW steps at a time. Each number is the median over the windows' means.
    """
    pair = [Simulation(num_running, num_steps, prompt_len, output_len, caching) for caching in (False, True)]
    windows: list[list[float]] = [[], []]
    for number in range(-(-num_steps // WINDOW)):
        steps = min(WINDOW, num_steps - number * WINDOW)
        for which in (0, 1) if number % 2 else (1, 0):
            windows[which].append(sum(pair[which].step() for _ in range(steps)) / steps)
    return statistics.median(windows[0]), statistics.median(windows[1])


def main(argv: Sequence[str]) -> int:
    """Runs the command line `argv` and prints one line for each number of running requests. Returns the exit status 0;
    exits with 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="tandem bench engine",
        description="Measure the CPU time that the scheduler spends on a step, with a simulated worker.",
    )
    parser.add_argument("--num-running", type=count, nargs="+", default=NUM_RUNNING, help="running requests")
    parser.add_argument("--num-steps", type=count, default=300, help="measured steps")
    parser.add_argument("--prompt-len", type=count, default=128, help="tokens of each prompt")
    parser.add_argument(
        "--output-len", type=count, default=0, help="output tokens of each request; default: no request finishes"
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--no-prefix-caching", action="store_true", help="schedule without the prefix cache")
    modes.add_argument(
        "--prefix-caching-cost", action="store_true", help="measure with and without the prefix cache, in turn"
    )
    args = parser.parse_args(argv)
    if args.prefix_caching_cost:
        _print_cost(args)
    else:
        _print_times(args)
    return 0


def _print_times(args: argparse.Namespace) -> None:
    sys.stdout.write(f"{'running':>8} {'median µs':>10} {'p99 µs':>10} {'µs/request':>11}\n")
    for num_running in args.num_running:
        times = step_times(num_running, args.num_steps, args.prompt_len, args.output_len, not args.no_prefix_caching)
        median, p99 = (1e6 * float(value) for value in np.percentile(times, [50, 99]))
        sys.stdout.write(f"{num_running:>8} {median:>10.1f} {p99:>10.1f} {median / num_running:>11.2f}\n")


def _print_cost(args: argparse.Namespace) -> None:
    sys.stdout.write(f"{'running':>8} {'without µs':>11} {'with µs':>10} {'cost':>8}\n")
    for num_running in args.num_running:
        without, cached = cost_of_prefix_caching(num_running, args.num_steps, args.prompt_len, args.output_len)
        cost = f"{cached / without - 1:+.1%}"
        sys.stdout.write(f"{num_running:>8} {1e6 * without:>11.1f} {1e6 * cached:>10.1f} {cost:>8}\n")
