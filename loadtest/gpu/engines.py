"""The in-process engine for timed steps: random weights in one of the shapes, and most of the GPU's memory.

Its KV cache ends at the default --gpu-memory-utilization (0.9), or at 256 requests of 4096 tokens. Only one engine
exists at a time. A check that needs the memory calls release().
"""

import functools
import gc
import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from engine_core.worker_messages import BatchLimits
from loadtest.gpu.shapes import BLOCK_SIZE, SHAPES
from services.options.declarations import WorkerOptions
from services.worker import loading
from tests.worker.in_process import InProcess

MAX_MODEL_LEN, MAX_NUM_SEQS, BUDGET = 4096, 256, 8192
_held: dict[tuple[str, bool], InProcess] = {}


def engine_for(device: torch.device, shape: str, invariant: bool) -> InProcess:
    """Returns the held engine if it has this shape (a key of SHAPES) and this `invariant` (--batch-invariant). Else
    releases it, and starts and holds a new one. All CUDA graphs are recorded."""
    if (shape, invariant) not in _held:
        release()
        _held[shape, invariant] = _start(device, shape, invariant)
    return _held[shape, invariant]


def release() -> None:
    """Drops the held engine, if there is one, and frees its memory."""
    _held.clear()
    gc.collect()
    torch.cuda.empty_cache()


def _start(device: torch.device, shape: str, invariant: bool) -> InProcess:
    """Returns a new engine, with all CUDA graphs recorded. Its weights are drawn on the device, which is fast. Times do
    not depend on their values."""
    path = Path(tempfile.mkdtemp())
    config = SHAPES[shape].config | {"architectures": ["Qwen3ForCausalLM"]}
    (path / "config.json").write_text(json.dumps(config))
    options = WorkerOptions(
        model=str(path), device=device.type, load_format="dummy", max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE,
        batch_invariant=invariant,
    )  # fmt: skip
    made, loading.dummy_weights = loading.dummy_weights, functools.partial(_weights_on, device)
    try:
        engine = InProcess(path, options, BatchLimits(1, MAX_NUM_SEQS, BUDGET), prefix_caching=False)
    finally:
        loading.dummy_weights = made
    while engine.runner.capture_next_graph():
        pass
    return engine


def _weights_on(
    device: torch.device, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int
) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {
        name: torch.ones(shape, dtype=dtype, device=device)
        if len(shape) == 1
        else torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02)
        for name, shape in shapes.items()
    }
