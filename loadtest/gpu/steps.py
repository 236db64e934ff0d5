"""Times of the worker's steps at the shapes of Qwen3-0.6B and Qwen3-8B in bf16, with random weights. CUDA only.

Steps are compared with the GPU's limits. The limit of a decode step is to read all weights and the KV of its requests.
The limit of a prompt step is the operations of attention and of all products but the output head's.
"""

import functools
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from engine_core.step_plan import SamplingParams
from loadtest.gpu.ahead import Ran, run_steps
from loadtest.gpu.engines import BUDGET, engine_for, release
from loadtest.gpu.limits import limits
from loadtest.gpu.shapes import DTYPE, SHAPES
from loadtest.gpu.table import Check
from services.worker.models.description import Description
from services.worker.models.tensors import num_weight_bytes
from tests.worker.in_process import Answer, InProcess

CONTEXT, STEPS = 512, 64
PREFILL = 4096
RAGGED, RAGGED_IN, RAGGED_OUT = 50, 32, (10, 150)


def checks(device: torch.device) -> list[Check]:
    """Returns the checks, grouped by engine: each engine is started once."""
    runs: dict[str, Callable[[InProcess], str]] = {
        f"decode, {count} running": functools.partial(decode, count=count) for count in (1, 32, 256)
    }
    runs["prefill"] = prefill
    compared = {"50 requests at once and one by one": ragged}

    def rows(shape: str, invariant: bool, runs: dict[str, Callable[[InProcess], str]]) -> list[Check]:
        how = "" if invariant else ", not batch-invariant"
        return [
            Check(f"{shape} {what}{how}", functools.partial(_with_engine, run, device, shape, invariant))
            for what, run in runs.items()
        ]

    return [
        *rows("0.6B", True, runs | compared),
        Check("0.6B against generate_batch of transformers", functools.partial(against_transformers, device)),
        *rows("8B", True, runs),
        *rows("0.6B", False, runs),
        *rows("8B", False, runs),
    ]


def _with_engine(run: Callable[[InProcess], str], device: torch.device, shape: str, invariant: bool) -> str:
    limits(device)  # measured first: the engine takes most of the memory
    return run(engine_for(device, shape, invariant))


def add(engine: InProcess, count: int, length: int, max_tokens: int) -> list[Answer]:
    """Adds `count` greedy requests with prompts of `length` tokens. Returns their growing answers."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    vocab = engine.facts.vocab_size
    return [engine.add([(7 * row + place) % vocab for place in range(length)], sampling) for row in range(count)]


def decode(engine: InProcess, count: int) -> str:
    """Times STEPS decode steps of `count` requests after their prompts. Returns ms, tokens/s and shares as text."""
    answers = add(engine, count, CONTEXT, 2 * STEPS)
    while any(not answer.token_ids for answer in answers):
        run_steps(engine, 1)
    run_steps(engine, 4)
    ran = run_steps(engine, STEPS)
    run_steps(engine)
    model, seconds = engine.model.decoder.description, ran.wall / ran.steps
    length = CONTEXT + STEPS // 2
    kv = count * length * 2 * sum(layer.attention.key_size for layer in model.layers) * DTYPE.itemsize
    limit = (read_bytes(model) + kv) / limits(engine.model.decoder.device).memory
    return (
        f"{1000 * seconds:.2f} ms, {count / seconds:.0f} tokens/s, {limit / seconds:.0%} of the memory rate,"
        f" wait share {ran.wait_share:.1%}, host {ran.host_ms:.2f} ms"
    )


def read_bytes(model: Description) -> int:
    """Returns the bytes of bf16 weights that a decode step reads, without an untied embedding: few rows are read."""
    embedding = 0 if model.tied else model.vocab_size * model.hidden_size * DTYPE.itemsize
    return num_weight_bytes(model, DTYPE.itemsize, DTYPE.itemsize) - embedding


def prefill(engine: InProcess) -> str:
    """Times prompts of PREFILL tokens, as many in a step as BUDGET allows. Returns tokens/s and shares as text."""
    ran = Ran()
    for _ in range(2):  # the first run compiles kernels
        add(engine, 4 * BUDGET // PREFILL, PREFILL, 1)
        ran = run_steps(engine)
    model, tokens = engine.model.decoder.description, 4 * BUDGET
    weights = (
        read_bytes(model) // DTYPE.itemsize - model.vocab_size * model.hidden_size
    )  # the output head runs for the last token only
    pairs = tokens * PREFILL // 2
    operations = 2 * tokens * weights + 4 * pairs * sum(layer.attention.query_size for layer in model.layers)
    limit = operations / limits(engine.model.decoder.device).matrix
    return (
        f"{tokens / ran.wall:.0f} tokens/s, {operations / ran.wall / 1e12:.0f} TFLOP/s,"
        f" {limit / ran.wall:.0%} of the matrix rate, wait share {ran.wait_share:.1%}, host {ran.host_ms:.2f} ms"
    )


def ragged(engine: InProcess) -> str:
    """Returns as text the output tokens/s of 50 concurrent requests with 10 to 150 output tokens each, and of the same
    requests one by one."""
    source = torch.Generator().manual_seed(1)
    lengths = torch.randint(RAGGED_OUT[0], RAGGED_OUT[1] + 1, (RAGGED,), generator=source).tolist()

    def seconds(some: list[int]) -> float:
        for length in some:
            add(engine, 1, RAGGED_IN, length)
        return run_steps(engine).wall

    seconds(lengths)  # warm-up
    at_once, one_by_one = seconds(lengths), sum(seconds([length]) for length in lengths)
    return (
        f"{sum(lengths) / at_once:.0f} tokens/s at once, {sum(lengths) / one_by_one:.0f} one by one:"
        f" {one_by_one / at_once:.1f} times"
    )


def against_transformers(device: torch.device) -> str:
    """Returns, as text, the output tokens/s of this worker and of transformers' `generate_batch`: 64 concurrent greedy
    requests, 64 tokens in and 64 out, bf16.

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
    return f"{own:.0f} tokens/s against {other:.0f}: {own / other:.1f} times"


def _seconds(engine: InProcess, count: int, length: int, max_tokens: int) -> float:
    """Runs the same requests twice. Returns the wall seconds of the second run."""
    for _ in range(2):
        add(engine, count, length, max_tokens)
        wall = run_steps(engine).wall
    return wall
