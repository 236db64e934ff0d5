"""Source tensors of a decoder's weights: memory-mapped from safetensors files, or random.

Mapping reads headers only. The decoder takes one tensor at a time and copies or packs it. So each file is read once, by
the packing threads, and at most one weight at a time is in memory twice.
"""

import logging
import time
from pathlib import Path

import torch
from torch import Tensor

from services.worker.errors import ModelError
from services.worker.models.description import Names
from services.worker.models.fused_experts import split
from services.worker.models.tensors import EMBEDDING, HEAD, weight
from services.worker.weight_files import opened

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 2.0
DUMMY_STD = 0.02
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Shapes = dict[str, tuple[int, ...]]  # by name in the checkpoint


class Weights:
    """`take` removes a tensor from `tensors` and returns it. Logs the progress at most every PROGRESS_SECONDS."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._total = max(1, sum(tensor.nbytes for tensor in tensors.values()))
        self._taken = 0
        self._logged_at = time.monotonic()

    def take(self, name: str) -> Tensor:
        tensor = self._tensors.pop(name)
        self._taken += tensor.nbytes
        if time.monotonic() - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = time.monotonic()
            log.info("loading weights: %d%% of %.1f GB", 100 * self._taken // self._total, self._total / 1e9)
        return tensor


def map_safetensors(files: list[Path], shapes: Shapes, tied: bool, names: Names | None = None) -> dict[str, Tensor]:
    """Returns the files' tensors by name, memory-mapped, in the checkpoint's dtypes; without lm_head if `tied`.

    `names`: other spellings, and what is skipped; one log line counts it. Raises ModelError for an unreadable file, a
    missing or unexpected tensor, a wrong shape, or a dtype that is none of DTYPES.
    """
    found: dict[str, Tensor] = {}
    names, skipped = names or Names(), 0
    for file in files:
        with opened(file) as tensors:
            for spelled in tensors.keys():  # noqa: SIM118 (not a dict)
                name = plain_name(spelled, names)
                if name.endswith(IGNORED_SUFFIXES) or (tied and name == weight(HEAD)):
                    continue
                if name.startswith(names.skipped):
                    skipped += 1
                    continue
                for plain, tensor in split(name, tensors.get_tensor(spelled), names):
                    if plain not in shapes or plain in found:
                        raise ModelError(f"{file.name}: unexpected tensor {_told(spelled, name, plain)}")
                    if tuple(tensor.shape) != shapes[plain]:
                        told, shape, expected = _told(spelled, name, plain), list(tensor.shape), list(shapes[plain])
                        raise ModelError(f"{file.name}: {told} has shape {shape}, config.json says {expected}")
                    if tensor.dtype not in DTYPES:
                        dtype = str(tensor.dtype).removeprefix("torch.")
                        raise ModelError(f"{file.name}: {spelled} is {dtype}, which is not supported")
                    found[plain] = tensor
    if skipped:
        log.info("skipped %d tensors that text does not need (images, sound, multi-token prediction)", skipped)
    if missing := sorted(shapes.keys() - found.keys()):
        raise ModelError(f"{len(missing)} tensors are missing from the checkpoint, among them {', '.join(missing[:3])}")
    return found


def has_own_head(files: list[Path], names: Names) -> bool:
    """Whether the files have a head that is not the embedding. Raises ModelError for an unreadable file."""
    found: dict[str, Tensor] = {}
    for file in files:
        with opened(file) as tensors:
            for spelled in tensors.keys():  # noqa: SIM118 (not a dict)
                if (name := plain_name(spelled, names)) in (weight(EMBEDDING), weight(HEAD)):
                    found[name] = tensors.get_tensor(spelled)
    head, embedding = found.get(weight(HEAD)), found.get(weight(EMBEDDING))
    if head is None or embedding is None:
        return head is not None
    return head.dtype != embedding.dtype or not torch.equal(head, embedding)


def plain_name(name: str, names: Names) -> str:
    """Returns the name as parameter_shapes has it."""
    for beginning, plain in names.renamed:
        if name.startswith(beginning):
            name = plain + name.removeprefix(beginning)
            break
    for spelling, plain in names.respelled:
        name = name.replace(spelling, plain)
    return name


def _told(spelled: str, name: str, plain: str) -> str:
    """Returns the tensor's name in the file, and, if it is fused, that of the part."""
    return spelled if plain == name else f"{spelled} ({plain})"


def dummy_weights(shapes: Shapes, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Returns random host tensors of `dtype` by name, equal for equal seeds; norms are 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape, dtype=dtype)
        if len(shape) == 1
        else (torch.randn(shape, generator=generator) * DUMMY_STD).to(dtype)
        for name, shape in sorted(shapes.items())
    }
