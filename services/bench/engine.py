"""`tandem bench engine`: the CPU time that a step costs the scheduler, with a worker that is only simulated.

Measured is schedule plus update of one thread, in steady decode: every request has one new token per step, and a new
block each BLOCK_SIZE steps, not all at the same one. What waits for the accelerator, and what other processes do, is
not in it.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.scheduler import Limits, Scheduler
from engine_core.step_plan import SamplingParams, StepResult
from services.bench.simulated_worker import SimulatedWorker

NUM_RUNNING = (64, 256, 1024)
BLOCK_SIZE = 16
WARM_UP_STEPS = 50
STEPS_IN_FLIGHT = 2
VOCAB_SIZE = 1000


def step_times(num_running: int, num_steps: int, prompt_len: int, prefix_caching: bool) -> list[float]:
    """CPU seconds of schedule plus update, for each step of steady decode."""
    total = WARM_UP_STEPS + num_steps + STEPS_IN_FLIGHT
    num_blocks = num_running * (-(-(prompt_len + total) // BLOCK_SIZE) + 2)
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, ("full",), prefix_caching)
    scheduler = Scheduler(kv, PlanBuilder(1, 1), Limits(num_running, num_running * (prompt_len + BLOCK_SIZE)))
    worker = SimulatedWorker(num_running, np.arange(VOCAB_SIZE, dtype=np.int32))
    for handle in range(num_running):
        prompt = [(handle * 7919 + place) % VOCAB_SIZE for place in range(prompt_len + handle % BLOCK_SIZE)]
        sampling = SamplingParams(max_tokens=total + 1, temperature=0.0)
        scheduler.add(Request(handle, sampling, 0, 0, prompt, len(prompt), b"bench"))
    results: deque[StepResult] = deque()
    times = []
    for _ in range(WARM_UP_STEPS + num_steps):
        began = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time()
        assert plan is not None
        results.append(worker.execute(plan))
        if len(results) < STEPS_IN_FLIGHT:
            continue
        result = results.popleft()
        resumed = time.thread_time()
        scheduler.update(result)
        times.append(planned - began + time.thread_time() - resumed)
    return times[-num_steps:]


def count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def main(argv: Sequence[str]) -> int:
    """Prints one line per number of running requests. Returns the exit status; a wrong command line exits with 2."""
    parser = argparse.ArgumentParser(
        prog="tandem bench engine",
        description="The CPU time that a step costs the scheduler, with a worker that is only simulated.",
    )
    parser.add_argument("--num-running", type=count, nargs="+", default=NUM_RUNNING, help="requests that decode")
    parser.add_argument("--num-steps", type=count, default=300, help="steps that count")
    parser.add_argument("--prompt-len", type=count, default=128, help="tokens of each prompt")
    parser.add_argument("--no-prefix-caching", action="store_true", help="schedule without the prefix cache")
    args = parser.parse_args(argv)
    sys.stdout.write(f"{'running':>8} {'median µs':>10} {'p99 µs':>10} {'µs/request':>11}\n")
    for num_running in args.num_running:
        times = step_times(num_running, args.num_steps, args.prompt_len, not args.no_prefix_caching)
        median, p99 = (1e6 * float(value) for value in np.percentile(times, [50, 99]))
        sys.stdout.write(f"{num_running:>8} {median:>10.1f} {p99:>10.1f} {median / num_running:>11.2f}\n")
    return 0
