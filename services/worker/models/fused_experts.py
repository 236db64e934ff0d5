"""Splits tensors that hold the weights of all experts of a layer into those of each expert."""

import re
from collections.abc import Iterator

from torch import Tensor

from services.worker.models.description import Fused, Names

LAYER = re.compile(r"model\.layers\.\d+\.")


def split(name: str, tensor: Tensor, names: Names) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, view) of each expert's parts of a fused tensor; of any other tensor itself."""
    layer = LAYER.match(name)
    fused = next((one for one in names.fused if layer and name[layer.end() :] == one.name), None)
    if layer is None or fused is None or tensor.dim() < 2:
        yield name, tensor
        return
    for number, own in enumerate(tensor):
        rows = own.T if fused.transposed and own.dim() == 2 else own
        for part, view in zip(fused.parts, _parts(rows, fused), strict=True):
            yield f"{layer.group()}{names.expert.format(number)}{part}", view


def _parts(rows: Tensor, fused: Fused) -> list[Tensor]:
    count = len(fused.parts)
    if fused.interleaved:
        return [rows[at::count] for at in range(count)]
    return list(rows.tensor_split(count))
