"""`python -m loadtest.studies.windows [--memory-gib N]`: requests and prefix hits of a cache, with and without windows.

Gemma 3 1B's layers, and the same layers without windows, with the same memory. The engine core's scheduler and block
pool run the requests, with a simulated worker: tokens and blocks are counted, not timed.

1. Requests of 32,768 tokens, more than fit: how many run at once, none of them preempted.
2. Conversations of several turns in random order, with a common beginning, in a quarter of the memory: the share of
   prompt tokens that are found.
"""

import argparse
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import KvGroup
from engine_core.plan_builder import PlanBuilder
from engine_core.request_check import NewChoice, make_request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.scheduler_counters import Counters
from engine_core.step_plan import SamplingParams, StepResult
from loadtest.engine.simulated_worker import SimulatedWorker
from loadtest.studies.families import SHAPES
from services.options.declarations import EngineOptions
from services.worker.kv_cache import block_bytes
from services.worker.models.describe import describe
from services.worker.models.description import Description
from services.worker.models.kv_layout import kv_layout
from tests.fakes import ROOT_KEY, make_facts

BLOCK_SIZE, VOCAB_SIZE, LENGTH = 16, 1000, 32_768
BUDGET, STEPS_IN_FLIGHT = EngineOptions.max_num_batched_tokens, 2
TURNS, COMMON, QUESTION, ANSWER = 8, 256, 200, 100  # of a conversation; tokens
CONVERSATIONS = (16, 64, 256, 1024)


def models() -> Iterator[tuple[str, Description]]:
    model = describe(SHAPES["Gemma-3-1B"])
    full = [replace(layer, attention=replace(layer.attention, window=None)) for layer in model.layers]
    yield "with windows", model
    yield "all layers full", replace(model, layers=tuple(full))


class Simulation:
    """An engine with a KV cache of `memory` bytes for `model`."""

    def __init__(self, model: Description, memory: int, most_running: int) -> None:
        layout = kv_layout(model, LENGTH)
        groups: Sequence[KvGroup] = layout.policies(BUDGET)
        self.num_blocks = memory // block_bytes(model, layout, BLOCK_SIZE, torch.bfloat16)
        kv = KVCacheManager(self.num_blocks, BLOCK_SIZE, tuple(groups), prefix_caching=True)
        self.scheduler = Scheduler(kv, PlanBuilder(1, len(groups)), SchedulerConfig(most_running, BUDGET))
        self._facts = make_facts(
            self.num_blocks, BLOCK_SIZE, LENGTH, vocab_size=VOCAB_SIZE, kv_groups=tuple(groups), eos_token_ids=()
        )
        self._worker = SimulatedWorker(most_running, np.arange(VOCAB_SIZE, dtype=np.int32))
        self._results: deque[StepResult] = deque()

    @property
    def counters(self) -> Counters:
        return self.scheduler.counters

    def add(self, handle: int, prompt: list[int], max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        new = NewChoice(handle, 0, prompt, [], sampling, 0, "", None)
        self.scheduler.add(make_request(new, self._facts, ROOT_KEY))

    def step(self) -> dict[int, list[int]]:
        """Runs a step, with others in flight as in the engine. Returns the new tokens by request."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self._results.append(self._worker.execute(plan))
        found: dict[int, list[int]] = {}
        if plan is None or len(self._results) == STEPS_IN_FLIGHT:
            for tokens in self.scheduler.update(self._results.popleft()).new_tokens:
                found.setdefault(tokens.handle, []).extend(tokens.token_ids)
        return found


def at_once(model: Description, memory: int) -> int:
    """Returns the most requests of LENGTH tokens that answer at the same time before one has ended or is preempted."""
    answer, most_running = 1024, 128
    simulation = Simulation(model, memory, most_running)
    source = random.Random(1)
    for handle in range(most_running):
        simulation.add(handle, source.choices(range(VOCAB_SIZE), k=LENGTH - answer), answer)
    begun = set[int]()
    while not simulation.counters.preemptions:
        begun |= simulation.step().keys()
        if len(simulation.scheduler.running) + len(simulation.scheduler.waiting) < most_running:
            break
    return len(begun)


def hit_share(model: Description, memory: int, num_conversations: int) -> tuple[float, int]:
    """Returns (share of prompt tokens that are found, preemptions) of conversations, of which one in four goes on at a
    time; the next turn comes when all of these have their answers."""
    simulation, source = Simulation(model, memory, 64), random.Random(1)
    common = source.choices(range(VOCAB_SIZE), k=COMMON)
    talks = [list(common) for _ in range(num_conversations)]
    handle = 0
    for _ in range(4 * TURNS):
        chosen = {}
        for number in source.sample(range(num_conversations), num_conversations // 4):
            talks[number] += source.choices(range(VOCAB_SIZE), k=QUESTION)
            chosen[handle] = number
            simulation.add(handle, list(talks[number]), ANSWER)
            handle += 1
        while simulation.scheduler.has_unfinished:
            for one, token_ids in simulation.step().items():
                talks[chosen[one]] += token_ids
    counters = simulation.counters
    return counters.prefix_cache_hits / counters.prefix_cache_queries, counters.preemptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-gib", type=float, default=8.0, help="of the KV cache")
    args = parser.parse_args()
    memory = int(args.memory_gib * 2**30)
    for name, model in models():
        blocks = Simulation(model, memory, 1).num_blocks
        print(f"{name}: {blocks} blocks; requests of {LENGTH} tokens at once: {at_once(model, memory)}", flush=True)
    memory = memory // 4
    print(f"conversations of about {TURNS} turns, {QUESTION} + {ANSWER} tokens each, after {COMMON} common ones")
    for count in CONVERSATIONS:
        shares = [(name, *hit_share(model, memory, count)) for name, model in models()]
        found = "; ".join(f"{name} {share:.1%} found, {preemptions} preemptions" for name, share, preemptions in shares)
        print(f"{count} conversations: {found}", flush=True)


if __name__ == "__main__":
    main()
