"""`python -m loadtest.studies.cache_groups [--groups 8]`: the prefix cache hits that separate groups of callers cost.

Requests begin with the same tokens, as with a common system prompt, and go on with tokens of their own. The engine
core's scheduler and block pool run them, with a simulated worker: once with all callers in one group, once with each
request in one of several groups, at random. Tokens are counted, not timed. Then the time of one root hash.
"""

import argparse
import random
import statistics
import sys
import time
from collections import deque

import numpy as np

from engine_core.block_hash import root_hash
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request_check import NewChoice, make_request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.scheduler_counters import Counters
from engine_core.step_plan import SamplingParams, StepResult
from loadtest.engine.simulated_worker import SimulatedWorker
from loadtest.flag_values import count
from services.machine import cpu_model
from services.options.declarations import EngineOptions
from tests.fakes import ROOT_KEY, make_facts

BLOCK_SIZE = 16
VOCAB_SIZE = 1000
MAX_RUNNING = 64
STEPS_IN_FLIGHT = 2
NUM_REQUESTS = (64, 256, 2048)
NUM_BLOCKS = (8192, 1024, 512)
HASHES, REPEATS = 20_000, 9


def counters_of(args: argparse.Namespace, num_groups: int, num_requests: int, num_blocks: int) -> Counters:
    """Returns the scheduler's counters after `num_requests` requests, which arrive at once, in a cache of `num_blocks`
    blocks. At most MAX_RUNNING run at a time."""
    rng = random.Random(1)
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, (FULL,), prefix_caching=True)
    scheduler = Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(MAX_RUNNING, EngineOptions.max_num_batched_tokens))
    facts = make_facts(num_blocks, BLOCK_SIZE, num_blocks * BLOCK_SIZE, vocab_size=VOCAB_SIZE)
    sampling = SamplingParams(max_tokens=args.output_len, temperature=0.0, ignore_eos=True)
    shared = rng.choices(range(VOCAB_SIZE), k=args.shared_len)
    for handle in range(num_requests):
        prompt = shared + rng.choices(range(VOCAB_SIZE), k=args.own_len)
        group = f"group {rng.randrange(num_groups)}"
        new = NewChoice(handle, 0, prompt, [], sampling, 0, "", None, cache_group=group)
        scheduler.add(make_request(new, facts, ROOT_KEY))
    run(scheduler)
    return scheduler.counters


def run(scheduler: Scheduler) -> None:
    """Runs the scheduler until no request is left, with steps in flight as in the engine."""
    worker = SimulatedWorker(MAX_RUNNING, np.arange(VOCAB_SIZE, dtype=np.int32))
    results: deque[StepResult] = deque()
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        if plan is not None:
            results.append(worker.execute(plan))
        if plan is None or len(results) == STEPS_IN_FLIGHT:
            scheduler.update(results.popleft())


def line(args: argparse.Namespace, num_groups: int, num_requests: int, num_blocks: int) -> str:
    counters = counters_of(args, num_groups, num_requests, num_blocks)
    prompt_tokens = num_requests * (args.shared_len + args.own_len)
    prefill = counters.scheduled_tokens - (counters.output_tokens - num_requests)  # a prefill samples the first token
    hits, looked_up = counters.prefix_cache_hits, counters.prefix_cache_queries
    return (
        f"{num_blocks:>7} {num_requests:>9} {num_groups:>7} {prompt_tokens:>14,} {hits / looked_up:>10.1%}"
        f" {prefill:>15,} {counters.preemptions:>12}"
    )


def microseconds_per_root() -> float:
    """Returns the CPU time of a root hash, of a group and a salt of 32 characters each: the median of REPEATS means."""
    times = []
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(HASHES):
            root_hash(ROOT_KEY, "sha256:" + "0" * 64, "g" * 32, "s" * 32)
        times.append(1e6 * (time.thread_time() - began) / HASHES)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=count, default=8, help="groups of callers, compared with one")
    parser.add_argument("--shared-len", type=count, default=512, help="tokens that all prompts begin with")
    parser.add_argument("--own-len", type=count, default=128, help="further tokens of each prompt")
    parser.add_argument("--output-len", type=count, default=64, help="output tokens of each request")
    args = parser.parse_args()
    print(f"blocks of {BLOCK_SIZE} tokens, {MAX_RUNNING} requests running at most, {args.shared_len} shared tokens")
    print(" blocks  requests  groups  prompt tokens  hit tokens  prefill tokens  preemptions")
    for num_blocks in NUM_BLOCKS:
        for num_requests in NUM_REQUESTS:
            for num_groups in (1, args.groups):
                print(line(args, num_groups, num_requests, num_blocks))
    print(f"{cpu_model()}: {microseconds_per_root():.1f} µs of CPU time for each root hash")
    return 0


if __name__ == "__main__":
    sys.exit(main())
