"""Times of the worker's steps at the shapes of Qwen3-0.6B and Qwen3-8B in bf16, with random weights.

A step is compared with its limit from first principles (ideal.py); a missed goal makes the row a note. Each row comes
with a table of kernels (profile.py). On a CPU the same code runs with a tiny model and few tokens, untimed.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from engine_core.step_plan import SamplingParams
from loadtest.gpu import ideal
from loadtest.gpu.ahead import Ran, run_steps
from loadtest.gpu.engines import SIZES, engine_for, release
from loadtest.gpu.ideal import Batch, Goal, judged
from loadtest.gpu.limits import limits
from loadtest.gpu.profile import profiled
from loadtest.gpu.shapes import DTYPE, SHAPES
from loadtest.gpu.table import Check, Measured
from loadtest.gpu.timings import shown
from tests.worker.in_process import Answer, InProcess

RAGGED_SHAPE = "0.6B"  # one by one, an 8B model would take a minute


@dataclass(frozen=True)
class Workload:
    context: int  # prompt tokens of the requests that decode
    steps: int  # decode steps that are timed
    profiled_steps: int
    prefill: int  # prompt tokens of the requests that are prefilled
    ragged: tuple[int, int, tuple[int, int]]  # requests, prompt tokens, fewest and most output tokens
    arrivals: tuple[int, int, int, int]  # requests, prompt tokens, output tokens, steps between two requests


WORKLOADS = {
    "cuda": Workload(512, 64, 4, 4096, (50, 32, (10, 150)), (64, 512, 64, 4)),
    "cpu": Workload(3, 2, 1, 4, (2, 2, (2, 3)), (2, 4, 3, 2)),
}


@dataclass(frozen=True)
class Case:
    """An engine to time, and the names of its rows."""

    engine: InProcess
    device: torch.device
    shape: str
    invariant: bool

    @property
    def workload(self) -> Workload:
        return WORKLOADS[self.device.type]

    def name(self, what: str) -> str:
        return row_name(self.shape, what, self.invariant)

    def share_goals(self, what: str, share: float) -> list[Goal]:
        """Returns the goal for a step's share of its limit; none without batch-invariant kernels."""
        return [ideal.at_least(share, ideal.SHARES[self.shape, what])] if self._has_goal(what) else []

    def limit(self, batch: Batch) -> dict[str, float]:
        model = self.engine.model.decoder.description
        return ideal.step_seconds(model, DTYPE.itemsize, batch, limits(self.device))

    def _has_goal(self, what: str) -> bool:
        return self.invariant and (self.shape, what) in ideal.SHARES


Run = Callable[[Case], Measured]


def checks(device: torch.device, shapes: Sequence[str], counts: Sequence[int], invariant: bool) -> list[Check]:
    """Returns the checks of steps of `shapes` (keys of SHAPES), grouped by shape: each engine is started once.

    `counts`: requests that decode together. `invariant`: with batch-invariant kernels (--batch-invariant); only then
    there are goals, and rows for requests that arrive steadily or all at once.
    """
    found = []
    for shape in shapes:
        runs: dict[str, Run] = {decode_name(count): functools.partial(decode, count=count) for count in counts}
        runs["prefill"] = prefill
        if invariant:
            runs["steady arrivals"] = arrivals
        if invariant and shape == RAGGED_SHAPE:
            runs[f"{WORKLOADS['cuda'].ragged[0]} requests at once and one by one"] = ragged
        found += [
            Check(
                row_name(shape, what, invariant),
                functools.partial(_with_engine, run, device, shape, invariant),
                alone=device.type == "cuda",
            )
            for what, run in runs.items()
        ]
    return found


def compared(device: torch.device) -> list[Check]:
    """Returns the check against transformers' own server of batches."""
    return [Check("0.6B against generate_batch of transformers", functools.partial(against_transformers, device))]


def row_name(shape: str, what: str, invariant: bool) -> str:
    return f"{shape} {what}{'' if invariant else ', not batch-invariant'}"


def decode_name(count: int) -> str:
    return f"decode, {count} running"


def _with_engine(run: Run, device: torch.device, shape: str, invariant: bool) -> str:
    limits(device)  # measured first: the engine takes most of the memory
    case = Case(engine_for(device, shape, invariant), device, shape, invariant)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        return shown(device, run(case))
    except BaseException:
        release()  # requests of the failed check are left in it
        raise


def add(engine: InProcess, count: int, length: int, max_tokens: int) -> list[Answer]:
    """Adds `count` greedy requests with prompts of `length` tokens. Returns their growing answers."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    vocab = engine.facts.vocab_size
    return [engine.add([(7 * row + place) % vocab for place in range(length)], sampling) for row in range(count)]


def decode(case: Case, count: int) -> Measured:
    """Times decode steps of `count` requests after their prompts."""
    engine, load = case.engine, case.workload
    running = min(count, SIZES[case.device.type].max_num_seqs)
    answers = add(engine, running, load.context, 2 * load.steps + 4 * load.profiled_steps)
    while any(not answer.token_ids for answer in answers):
        run_steps(engine, 1)
    run_steps(engine, load.profiled_steps)
    lengths = [load.context + len(answer.token_ids) + load.steps // 2 for answer in answers]
    ran = run_steps(engine, load.steps)
    kernels = profiled(case.name(decode_name(count)), case.device, lambda: run_steps(engine, load.profiled_steps))
    memory = memory_of(case.device)
    run_steps(engine)
    limit = case.limit(Batch(tuple((1, length - 1) for length in lengths), running))
    share, wait = sum(limit.values()) * ran.steps / ran.wall, ran.wait_share
    goals = case.share_goals(decode_name(count), share)
    if case.invariant:
        goals.append(ideal.wait_below(wait, ideal.DECODE_WAIT))
    tokens_per_s = running * ran.steps / ran.wall
    text = f"{ran.ms:.2f} ms, {tokens_per_s:.0f} tokens/s, {share:.0%} of the limit, {times(ran)}"
    text += f", {kernels.gaps}, {in_words(memory)}"
    figures = figures_of(ran, tokens_per_s, memory)
    return judged(text, goals, **figures, share=share, limit_ms=milliseconds(limit), profile=kernels.data)


def prefill(case: Case) -> Measured:
    """Times prompts, as many in a step as the budget allows: their steps have no graph, so gaps between kernels are
    those of launches one by one."""
    engine, length = case.engine, case.workload.prefill
    budget, ran, steps = SIZES[case.device.type].budget, Ran(), 4
    for _ in range(2):  # the first run compiles kernels
        add(engine, steps * budget // length, length, 1)
        ran = run_steps(engine)
    memory = memory_of(case.device)
    add(engine, budget // length, length, 1)
    kernels = profiled(case.name("prefill"), case.device, lambda: run_steps(engine))
    limit = case.limit(Batch(((length, 0),) * (budget // length), budget // length))
    share, tokens = steps * sum(limit.values()) / ran.wall, steps * budget
    text = f"{ran.ms:.1f} ms, {tokens / ran.wall:.0f} tokens/s, {share:.0%} of the limit, {times(ran)}"
    text += f", {kernels.gaps}, {in_words(memory)}"
    figures = figures_of(ran, tokens / ran.wall, memory)
    goals = case.share_goals("prefill", share)
    return judged(text, goals, **figures, share=share, limit_ms=milliseconds(limit), profile=kernels.data)


def arrivals(case: Case) -> Measured:
    """Times requests that arrive one every few steps: most steps decode, some have a prompt as well."""
    engine, (count, length, max_tokens, every) = case.engine, case.workload.arrivals
    ran = Ran()

    def arrive(step: int) -> None:
        if step % every == 0 and step // every < count:
            add(engine, 1, length, max_tokens)

    for _ in range(2):  # the first run compiles kernels
        ran = run_steps(engine, before_each=arrive)
    memory, tokens_per_s = memory_of(case.device), count * max_tokens / ran.wall
    text = f"{count} requests of {length} in and {max_tokens} out, one every {every} steps: {ran.ms:.2f} ms a step"
    text += f", {tokens_per_s:.0f} tokens/s, {times(ran)}, {in_words(memory)}"
    goals = [ideal.wait_below(ran.wait_share, ideal.ARRIVALS_WAIT)]
    return judged(text, goals, **figures_of(ran, tokens_per_s, memory))


def ragged(case: Case) -> Measured:
    """Times concurrent requests of ragged lengths, and the same requests one by one."""
    source, (count, length, (fewest, most)) = torch.Generator().manual_seed(1), case.workload.ragged
    lengths = torch.randint(fewest, most + 1, (count,), generator=source).tolist()

    def seconds(some: list[int]) -> float:
        for max_tokens in some:
            add(case.engine, 1, length, max_tokens)
        return run_steps(case.engine).wall

    seconds(lengths)  # warm-up
    at_once, one_by_one = seconds(lengths), sum(seconds([each]) for each in lengths)
    together, alone, faster = sum(lengths) / at_once, sum(lengths) / one_by_one, one_by_one / at_once
    text = f"{together:.0f} tokens/s at once, {alone:.0f} one by one: {faster:.1f} times"
    goals = [ideal.times_as_fast(faster, ideal.AT_ONCE)]
    return judged(text, goals, tokens_per_s=together, one_by_one_tokens_per_s=alone, times=faster)


def times(ran: Ran) -> str:
    return f"wait share {ran.wait_share:.1%}, host {ran.host_ms:.2f} ms, launch {ran.launch_ms:.2f} ms"


def in_words(memory: dict[str, int]) -> str:
    return ", ".join(f"{name.removesuffix('_mib')} {size} MiB" for name, size in memory.items())


def figures_of(ran: Ran, tokens_per_s: float, memory: dict[str, int]) -> dict[str, float]:
    """Returns the figures that rows of steps have in common; times are of one step."""
    return {
        "ms": ran.ms, "tokens_per_s": tokens_per_s, "wait_share": ran.wait_share, "host_ms": ran.host_ms,
        "launch_ms": ran.launch_ms, **memory,
    }  # fmt: skip


def milliseconds(limit: dict[str, float]) -> dict[str, float]:
    return {kind: 1000 * seconds for kind, seconds in limit.items()}


def memory_of(device: torch.device) -> dict[str, int]:
    """Returns the most MiB that torch has allocated since the row began, and how many of them steps added to weights
    and cache; {} on a CPU. No step may be in flight."""
    if device.type != "cuda":
        return {}
    peak, held = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    return {"peak_mib": peak >> 20, "step_mib": (peak - held) >> 20}


def against_transformers(device: torch.device) -> Measured:
    """Returns the output tokens/s of this worker and of transformers' `generate_batch`: 64 concurrent greedy requests,
    64 tokens in and 64 out, bf16.

    The two run one after the other, each alone in the GPU's memory. The second run of each is timed.
    """
    count, length, max_tokens = 64, 64, 64
    own = count * max_tokens / _seconds(engine_for(device, "0.6B", True), count, length, max_tokens)
    release()
    with torch.device(device):
        config = Qwen3Config(**SHAPES["0.6B"].config)
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa").eval()
    greedy = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [[(7 * row + place) % 1000 for place in range(length)] for row in range(count)]
    seconds, found = 0.0, {}
    for _ in range(2):  # the first records graphs
        began = time.perf_counter()
        found = model.generate_batch(prompts, generation_config=greedy, persistent_manager=True)
        seconds = time.perf_counter() - began
    model.destroy_cached_continuous_batching_manager()
    tokens = sum(len(answer.generated_tokens) for answer in found.values())
    assert tokens == count * max_tokens, f"generate_batch gave {tokens} tokens"
    other = tokens / seconds
    text = f"{own:.0f} tokens/s against {other:.0f}: {own / other:.1f} times"
    return Measured(text, tokens_per_s=own, other_tokens_per_s=other)


def _seconds(engine: InProcess, count: int, length: int, max_tokens: int) -> float:
    """Runs the same requests twice. Returns the wall seconds of the second run."""
    for _ in range(2):
        add(engine, count, length, max_tokens)
        wall = run_steps(engine).wall
    return wall
