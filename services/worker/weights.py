"""Fills a decoder's memory: from safetensors files, or with random numbers."""

import logging
import time
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from services.worker.errors import ModelError

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 2.0
DUMMY_STD = 0.02
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)


def load_safetensors(parameters: dict[str, Tensor], files: list[Path], tied: bool) -> None:
    """Raises ModelError when a tensor is missing, has another shape, or is one that the model does not know."""
    wanted = dict(parameters)
    progress = _Progress(sum(file.stat().st_size for file in files))
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                if name.endswith(IGNORED_SUFFIXES) or (tied and name == "lm_head.weight"):
                    continue
                if name not in wanted:
                    raise ModelError(f"{file.name}: unexpected tensor {name}")
                source, target = tensors.get_tensor(name), wanted.pop(name)
                if source.shape != target.shape:
                    raise ModelError(
                        f"{file.name}: {name} has shape {list(source.shape)}, config.json says {list(target.shape)}"
                    )
                target.copy_(source)
                progress.add(source.nbytes)
    if wanted:
        some = ", ".join(sorted(wanted)[:3])
        raise ModelError(f"{len(wanted)} tensors are missing from the checkpoint, among them {some}")


class _Progress:
    """A log line now and then while a large checkpoint is read."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._told = time.monotonic()

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            log.info("loading weights: %d%% of %.1f GB", 100 * self._done // self._total, self._total / 1e9)


def fill_dummy(parameters: dict[str, Tensor], seed: int) -> None:
    """Random weights, the same for the same seed on any device; norms are 1."""
    generator = torch.Generator().manual_seed(seed)
    for name in sorted(parameters):
        target = parameters[name]
        if target.dim() == 1:
            target.fill_(1.0)
        else:
            target.copy_(torch.randn(target.shape, generator=generator) * DUMMY_STD)
