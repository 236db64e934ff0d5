"""Compiles the kernels of the timed models before their engines start: concurrent checks fill Triton's disk cache.

A product has one kernel for each class of row counts. All other kernels are compiled by an engine with one layer of the
model.
"""

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from kernels.gpu.matrix import matrix_of
from loadtest.gpu import engines
from loadtest.gpu.parity import triton_ops
from loadtest.gpu.shapes import BLOCK_SIZE, DTYPE, SHAPES, VOCAB, Shape
from loadtest.gpu.table import Check
from services.options.declarations import WorkerOptions
from services.worker import loading
from tests.worker.in_process import InProcess

MODELS = ("0.6B", "8B")
CPU_PRODUCTS, CPU_ROWS = ((70, 200), (64, 1024)), 40
LENGTH = 2048  # of a prompt on a GPU: longer than a chunk's tiles
NUM_SEQS = 256
CACHE_BYTES = 2**28


def checks(device: torch.device) -> list[Check]:
    if device.type == "cpu":
        return [
            *(product_check("small shapes", device, n, k, CPU_ROWS) for n, k in CPU_PRODUCTS),
            Check("compile a step of a tiny model", functools.partial(tiny_step, device), alone=False),
        ]
    return [
        check
        for model in MODELS
        for check in (
            Check(f"compile a step of {model}", functools.partial(step, device, SHAPES[model]), alone=False),
            *(product_check(model, device, n, k, LENGTH) for n, k in SHAPES[model].products),
        )
    ]


def product_check(model: str, device: torch.device, n: int, k: int, most: int) -> Check:
    run = functools.partial(multiply, device, n, k, most)
    return Check(f"compile products of {model}, {n} x {k}", run, alone=False)


def multiply(device: torch.device, n: int, k: int, most: int) -> str:
    """Multiplies by a weight [n, k] by each launch that up to `most` rows take; a head's results are float32. Asserts
    that all are finite. Returns the smallest row count of each launch as text."""
    weight = matrix_of([torch.ones(n, k, dtype=DTYPE, device=device)], None)
    classes = weight.row_classes(min(most, NUM_SEQS) if n == VOCAB else most)
    for rows in classes:
        out = weight.product(torch.ones(rows, k, dtype=DTYPE, device=device), torch.float32 if n == VOCAB else None)
        assert torch.isfinite(out).all(), f"{rows} rows: a result is not finite"
    if device.type == "cuda":
        torch.cuda.empty_cache()  # other processes use this GPU at the same time
    return f"{len(classes)} launches, from {', '.join(map(str, classes))} rows on"


def step(device: torch.device, shape: Shape) -> str:
    """Runs the profile run, the graphs and a prompt of a model of `shape` with one layer. Returns the number of tokens
    as text."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(shape, num_layers=1).config | {"architectures": ["Qwen3ForCausalLM"]}
        Path(folder, "config.json").write_text(json.dumps(config))
        options = WorkerOptions(
            model=folder, device=device.type, load_format="dummy", max_model_len=2 * LENGTH, block_size=BLOCK_SIZE,
            kv_cache_memory_bytes=CACHE_BYTES,
        )  # fmt: skip
        with patch.object(loading, "dummy_weights", functools.partial(engines._weights_on, device)):
            engine = InProcess(Path(folder), options, BatchLimits(1, NUM_SEQS, LENGTH), False)
    return complete(engine, [[1] * LENGTH, [1]])


def tiny_step(device: torch.device) -> str:
    """Does what `step` does, for the smallest model of parity.py, with interpreted kernels."""
    from loadtest.gpu.parity import first_case

    path = first_case(device).path
    options = WorkerOptions(model=str(path), device="cpu", max_model_len=64, kv_cache_memory_bytes=2**22)
    return complete(InProcess(path, options, BatchLimits(1, 4, 64), False, triton_ops(device)), [[1] * 9, [1]])


def complete(engine: InProcess, prompts: list[list[int]]) -> str:
    """Runs the prompts with two tokens each, greedy and sampled, and drops the engine's memory. Returns the number of
    tokens as text."""
    count = 0
    for temperature in (0.0, 1.0):
        answers = engine.complete(prompts, SamplingParams(max_tokens=2, temperature=temperature))
        count += sum(len(answer.token_ids) for answer in answers)
    return f"{count} tokens"
