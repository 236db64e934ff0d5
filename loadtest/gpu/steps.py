"""How long the worker's steps take at the shapes of Qwen3-0.6B and Qwen3-8B in bf16, with random weights, and what
share of the card's limits that is. CUDA only. A step that decodes must read all weights and the KV of its requests; one
that reads prompts must do the multiplications of all weights."""

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
from services.worker.models.config import DecoderConfig
from services.worker.models.parameters import num_weight_bytes
from tests.worker.in_process import Answer, InProcess

CONTEXT, STEPS = 512, 64
PREFILL = 4096
RAGGED, RAGGED_IN, RAGGED_OUT = 50, 32, (10, 150)


def checks(device: torch.device) -> list[Check]:
    """What is served first, and each engine's checks behind each other: it is made once."""
    runs: dict[str, Callable[[InProcess], str]] = {
        f"decode, {count} running": functools.partial(decode, count=count) for count in (1, 32, 256)
    }
    runs["prefill"] = prefill
    many = {"50 requests at once and one by one": ragged}

    def rows(shape: str, invariant: bool, runs: dict[str, Callable[[InProcess], str]]) -> list[Check]:
        how = "" if invariant else ", not batch-invariant"
        return [
            Check(f"{shape} {what}{how}", functools.partial(_with_engine, run, device, shape, invariant))
            for what, run in runs.items()
        ]

    return [
        *rows("0.6B", True, runs | many),
        Check("0.6B against generate_batch of transformers", functools.partial(against_transformers, device)),
        *rows("8B", True, runs),
        *rows("0.6B", False, runs),
        *rows("8B", False, runs),
    ]


def _with_engine(run: Callable[[InProcess], str], device: torch.device, shape: str, invariant: bool) -> str:
    limits(device)  # in memory that the engine would take
    return run(engine_for(device, shape, invariant))


def add(engine: InProcess, count: int, length: int, max_tokens: int) -> list[Answer]:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    vocab = engine.facts.vocab_size
    return [engine.add([(7 * row + place) % vocab for place in range(length)], sampling) for row in range(count)]


def decode(engine: InProcess, count: int) -> str:
    """Once all prompts are read: STEPS steps in which every request gets a token."""
    answers = add(engine, count, CONTEXT, 2 * STEPS)
    while any(not answer.token_ids for answer in answers):
        run_steps(engine, 1)
    run_steps(engine, 4)
    ran = run_steps(engine, STEPS)
    run_steps(engine)
    config, seconds = engine.model.decoder.config, ran.wall / ran.steps
    length = CONTEXT + STEPS // 2
    kv = count * length * 2 * config.num_layers * config.num_kv_heads * config.head_dim * DTYPE.itemsize
    limit = (read_bytes(config) + kv) / limits(engine.model.decoder.device).memory
    return (
        f"{1000 * seconds:.2f} ms, {count / seconds:.0f} tokens/s, {limit / seconds:.0%} of the memory's limit,"
        f" wait share {ran.wait_share:.1%}, host {ran.host_ms:.2f} ms"
    )


def read_bytes(config: DecoderConfig) -> int:
    """Of weights, in a step that decodes: of an embedding that is not the output head, only rows."""
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size * DTYPE.itemsize
    return num_weight_bytes(config, DTYPE.itemsize, DTYPE.itemsize) - embedding


def prefill(engine: InProcess) -> str:
    """Prompts of PREFILL tokens, as many at once as a step takes."""
    ran = Ran()
    for _ in range(2):  # the first compiles what is new
        add(engine, 4 * BUDGET // PREFILL, PREFILL, 1)
        ran = run_steps(engine)
    config, tokens = engine.model.decoder.config, 4 * BUDGET
    weights = (
        read_bytes(config) // DTYPE.itemsize - config.vocab_size * config.hidden_size
    )  # behind the last token only
    pairs = tokens * PREFILL // 2
    operations = 2 * tokens * weights + 4 * pairs * config.num_layers * config.num_heads * config.head_dim
    limit = operations / limits(engine.model.decoder.device).matrix
    return (
        f"{tokens / ran.wall:.0f} tokens/s, {operations / ran.wall / 1e12:.0f} TFLOP/s,"
        f" {limit / ran.wall:.0%} of the matrix rate, wait share {ran.wait_share:.1%}, host {ran.host_ms:.2f} ms"
    )


def ragged(engine: InProcess) -> str:
    """50 requests of 10 to 150 tokens: how much faster all at once are than one after the other."""
    source = torch.Generator().manual_seed(1)
    lengths = torch.randint(RAGGED_OUT[0], RAGGED_OUT[1] + 1, (RAGGED,), generator=source).tolist()

    def ask(some: list[int]) -> float:
        for length in some:
            add(engine, 1, RAGGED_IN, length)
        return run_steps(engine).wall

    ask(lengths)
    at_once, one_by_one = ask(lengths), sum(ask([length]) for length in lengths)
    return (
        f"{sum(lengths) / at_once:.0f} tokens/s at once, {sum(lengths) / one_by_one:.0f} one by one:"
        f" {one_by_one / at_once:.1f} times"
    )


def against_transformers(device: torch.device) -> str:
    """64 requests of 64 tokens in and 64 out, greedy, all at once, bf16: this worker over `generate_batch`, each with
    all of the memory, and the second time that it is asked."""
    count, length, max_tokens = 64, 64, 64
    ours = count * max_tokens / _seconds(engine_for(device, "0.6B", True), count, length, max_tokens)
    release()
    with torch.device(device):
        config = Qwen3Config(**SHAPES["0.6B"].config)
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa").eval()
    greedy = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [[(7 * row + place) % 1000 for place in range(length)] for row in range(count)]
    seconds, found = 0.0, {}
    for _ in range(2):  # what it records at first it keeps
        began = time.perf_counter()
        found = model.generate_batch(prompts, generation_config=greedy, persistent_manager=True)
        seconds = time.perf_counter() - began
    model.destroy_cached_continuous_batching_manager()
    tokens = sum(len(answer.generated_tokens) for answer in found.values())
    assert tokens == count * max_tokens, f"generate_batch gave {tokens} tokens"
    theirs = tokens / seconds
    return f"{ours:.0f} tokens/s against {theirs:.0f}: {ours / theirs:.1f} times"


def _seconds(engine: InProcess, count: int, length: int, max_tokens: int) -> float:
    """Of the second time."""
    for _ in range(2):
        add(engine, count, length, max_tokens)
        wall = run_steps(engine).wall
    return wall
