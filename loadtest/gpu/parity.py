"""Greedy answers of scheduler and model runner against transformers' own class on the same device, in float32.

Each check asserts from the scheduler's counters that the named event (a chunk, a preemption) happened. On a CPU the
decoder uses the Triton kernels through the interpreter.
"""

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from kernels.gpu.ops import TritonOps
from kernels.interface import Ops
from loadtest.gpu.table import Check
from services.options.declarations import WorkerOptions
from services.worker.checkpoint import read_checkpoint
from services.worker.kv_cache import block_bytes
from services.worker.models.describe import describe
from services.worker.models.kv_layout import kv_layout
from tests import reference
from tests.checkpoints import PARITY_CONFIGS, make_qwen3
from tests.reference import ReferenceAnswer
from tests.worker.in_process import InProcess


@dataclass(frozen=True)
class Size:
    """A workload: its models by name, its prompts and answers in tokens, and the step budget of the chunked check.

    A prompt has one of `lengths`; half of the prompts have `shared` common tokens before. A cache of `few_blocks` with
    a max_model_len of `few_len` forces preemptions. The expected answers of a model must together have more than
    `min_distinct` distinct tokens.
    """

    configs: dict[str, dict[str, Any]]
    block_size: int
    num_prompts: int
    lengths: Sequence[int]
    shared: int
    max_tokens: int
    budget: int
    few_blocks: int
    few_len: int
    min_distinct: int


LARGE = Size(PARITY_CONFIGS, 8, 32, (1, 3, 17, 40, 64, 90, 160), 40, 32, 24, 40, 240, 100)
TINY = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True}
SMALL = Size({"tiny": TINY}, 4, 3, (3, 6), 8, 4, 6, 5, 20, 3)


@dataclass(frozen=True)
class Case:
    path: Path
    prompts: list[list[int]]
    expected: list[ReferenceAnswer]


def size_for(device: torch.device) -> Size:
    return LARGE if device.type == "cuda" else SMALL


def triton_ops(device: torch.device, quantization: str | None = None) -> Ops | None:
    """Returns the Triton kernels, to be interpreted on a CPU; None on a GPU, where they are the decoder's default."""
    return None if device.type == "cuda" else TritonOps(quantization=quantization)


@functools.cache
def case(name: str, device: str) -> Case:
    size = size_for(torch.device(device))
    path = make_qwen3(Path(tempfile.mkdtemp()), seed=3, **size.configs[name])
    prompts = reference.mixed_prompts(len(name), size.num_prompts, size.lengths, size.shared)
    expected = reference.generate(path, prompts, size.max_tokens, device)
    distinct = {token_id for answer in expected for token_id in answer.token_ids}
    assert len(distinct) > size.min_distinct, "the model's answers have too few distinct tokens to show position bugs"
    return Case(path, prompts, expected)


def first_case(device: torch.device) -> Case:
    """Returns the checkpoint, prompts and expected answers of the first model, for checks that need one model."""
    return case(next(iter(size_for(device).configs)), device.type)


def start(
    path: Path, device: torch.device, *, caching: bool, max_num_seqs: int = 128, budget: int = 2048, **changes: Any
) -> InProcess:
    options = {"dtype": "float32", "block_size": size_for(device).block_size, **changes}
    worker = WorkerOptions(model=str(path), device=device.type, **options)
    ops = triton_ops(device, worker.quantization)
    return InProcess(path, worker, BatchLimits(1, max_num_seqs, budget), caching, ops)


def compare(engine: InProcess, case: Case) -> str:
    """Compares the engine's answers to all prompts with the expected ones. Returns the counts and differences as text.

    Raises AssertionError unless all tokens are equal, logprobs are close, and all blocks are free at the end. One
    answer may differ from a tie of the best two logits on.
    """
    sampling = SamplingParams(max_tokens=len(case.expected[0].token_ids), temperature=0.0, logprobs=0)
    answers = engine.complete(case.prompts, sampling)
    ties, worst = 0, 0.0
    for index, (expected, answer) in enumerate(zip(case.expected, answers, strict=True)):
        try:
            at_tie = reference.assert_equal_but_for_ties(expected, answer.token_ids, answer.logprobs)
        except AssertionError as error:
            raise AssertionError(f"prompt {index} of {len(case.prompts[index])} tokens: {error}") from error
        ties += at_tie
        if not at_tie:
            pairs = zip(answer.logprobs, expected.logprobs, strict=True)
            worst = max(worst, *(abs(own - other) for own, other in pairs))
    assert ties <= 1, f"{ties} of {len(answers)} answers differ from a tie on"
    engine.scheduler.kv.pool.check()
    assert engine.stats.num_free_blocks == engine.stats.num_blocks, "not all blocks are free at the end"
    return f"{len(answers)} answers equal, {ties} differ from a tie on, logprobs within {worst:.1e}"


def all_at_once(case: Case, device: torch.device) -> str:
    """Sends all prompts twice and compares the answers with the expected ones. Asserts that nothing is preempted, and
    that the second time each full block before a prompt's last token is a prefix cache hit. Returns the first
    comparison's text and the number of tokens hit."""
    engine = start(case.path, device, caching=True)
    first = compare(engine, case)
    assert engine.stats.num_preemptions == 0
    before = engine.stats.prefix_cache_hits
    compare(engine, case)
    hits = engine.stats.prefix_cache_hits - before
    block_size = engine.shape.block_size
    expected = sum((len(prompt) - 1) // block_size * block_size for prompt in case.prompts)
    assert hits == expected > 0, f"{hits} tokens found in the prefix cache, expected {expected}"
    return f"{first}; again with {hits} tokens from the prefix cache"


def chunked(case: Case, device: torch.device) -> str:
    size = size_for(device)
    engine = start(case.path, device, caching=False, max_num_seqs=size.budget // 2, budget=size.budget)
    found = compare(engine, case)
    assert engine.stats.num_chunked_rows >= size.num_prompts, f"only {engine.stats.num_chunked_rows} chunks"
    return f"{found}; {engine.stats.num_chunked_rows} chunks"


def few_blocks(case: Case, device: torch.device, caching: bool) -> str:
    size = size_for(device)
    model = describe(read_checkpoint(case.path, {}, "auto").config)
    memory = size.few_blocks * block_bytes(model, kv_layout(model, size.few_len), size.block_size, torch.float32)
    engine = start(case.path, device, caching=caching, max_model_len=size.few_len, kv_cache_memory_bytes=memory)
    assert engine.shape.num_blocks == size.few_blocks
    found = compare(engine, case)
    assert engine.stats.num_preemptions > 0, "nothing was preempted"
    return f"{found}; {engine.stats.num_preemptions} preemptions"


RUNS: dict[str, Callable[[Case, torch.device], str]] = {
    "all at once, twice": all_at_once,
    "chunked": chunked,
    "few blocks": functools.partial(few_blocks, caching=False),
    "few blocks, prefix caching": functools.partial(few_blocks, caching=True),
}


def checks(device: torch.device) -> list[Check]:
    return [
        Check(f"parity {name}: {what}", functools.partial(run_one, run, name, device))
        for name in size_for(device).configs
        for what, run in RUNS.items()
    ]


def run_one(run: Callable[[Case, torch.device], str], name: str, device: torch.device) -> str:
    return run(case(name, device.type), device)
