"""The in-process engine for timed steps: random weights in one of the shapes, and most of the GPU's memory.

Its KV cache ends at the default --gpu-memory-utilization (0.9), or at the requests of its Size. Only one engine exists
at a time. A check that needs the memory calls release(). On a CPU every shape is a tiny model, its kernels interpreted.
"""

import functools
import gc
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from engine_core.worker_messages import BatchLimits
from kernels.gpu.ops import TritonOps
from loadtest.gpu.shapes import BLOCK_SIZE, SHAPES
from services.options.declarations import WorkerOptions
from services.worker import loading
from tests.worker.in_process import InProcess


@dataclass(frozen=True)
class Size:
    max_model_len: int
    max_num_seqs: int
    budget: int  # --max-num-batched-tokens


SIZES = {"cuda": Size(8192, 256, 8192), "cpu": Size(64, 2, 8)}
TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 60, "max_position_embeddings": 64, "eos_token_id": 59,
}  # fmt: skip
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
    path, size = Path(tempfile.mkdtemp()), SIZES[device.type]
    config: dict[str, Any] = SHAPES[shape].config | {"architectures": ["Qwen3ForCausalLM"]}
    if device.type != "cuda":
        config |= TINY
    (path / "config.json").write_text(json.dumps(config))
    options = WorkerOptions(
        model=str(path), device=device.type, load_format="dummy", max_model_len=size.max_model_len,
        block_size=BLOCK_SIZE, batch_invariant=invariant,
    )  # fmt: skip
    limits = BatchLimits(1, size.max_num_seqs, size.budget)
    ops = None if device.type == "cuda" else TritonOps(invariant)
    with patch.object(loading, "dummy_weights", functools.partial(_weights_on, device)):
        engine = InProcess(path, options, limits, prefix_caching=False, ops=ops)
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
