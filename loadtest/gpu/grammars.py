"""Grammars on the device: the bitmask kernel against its twin; answers with steps launched before earlier results."""

import functools
import tempfile
from pathlib import Path

import torch

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from kernels.gpu.bitmask import apply_bitmask
from loadtest.gpu.parity import triton_ops
from loadtest.gpu.table import Check
from services.options.declarations import WorkerOptions
from tests.checkpoints import make_qwen3
from tests.kernels.bitmask_cases import check_bitmask
from tests.worker.grammar_engine import GrammarEngine
from tests.worker.in_process import Answer

GRAMMARS = ("start: /[0-9]{3,12}/", "", 'start: %json {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}')


def checks(device: torch.device) -> list[Check]:
    return [
        Check("kernel bitmask: the twin's logits", functools.partial(bitmask, device), alone=False),
        Check("answers with grammars: alone, together and ahead", functools.partial(answers, device)),
    ]


def bitmask(device: torch.device) -> str:
    sizes = [1, 31, 32, 33, 5003, 151_936] if device.type == "cuda" else [33, 1100]
    densities = (0.0, 0.01, 0.5, 0.99)
    for vocab in sizes:
        for density in densities:
            check_bitmask(apply_bitmask, device, 7, vocab, density, seed=vocab)
    return f"{len(sizes) * len(densities)} cases bit for bit"


def answers(device: torch.device) -> str:
    """Asserts that answers with and without grammars are the same alone, together, and with steps planned ahead."""
    count = 12 if device.type == "cuda" else 3
    with tempfile.TemporaryDirectory() as folder:
        path = make_qwen3(Path(folder) / "model", seed=3)
        options = WorkerOptions(
            model=str(path), device=device.type, dtype="float32", max_model_len=128, kv_cache_memory_bytes=2**24
        )
        engine = GrammarEngine(path, options, BatchLimits(1, count, 256), ops=triton_ops(device, None))
        alone = []
        for seed in range(count):
            alone.append(ask(engine, seed))
            engine.run()
        for run in (engine.run, engine.run_ahead):
            together = [ask(engine, seed) for seed in range(count)]
            run()
            assert together == alone, "answers differ"
    assert all(not answer.error for answer in alone), alone
    return f"{count} answers bit for bit, {engine.stats.num_steps_ahead} steps planned ahead"


def ask(engine: GrammarEngine, seed: int) -> Answer:
    sampling = SamplingParams(24, temperature=0.9, logprobs=1, eos_token_ids=(2,))
    return engine.ask([seed + 5, 9, 400], sampling, GRAMMARS[seed % len(GRAMMARS)], seed)
