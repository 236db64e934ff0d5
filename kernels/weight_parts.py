"""Concatenates the tensors of a checkpoint that make one weight: as one copy, or some rows at a time."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels import pages, upload

CONVERTED_ROWS = 4096  # converted to another dtype at once


def joined(parts: Sequence[Tensor], dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Returns a copy of the parts [.., k], concatenated to [rows, k]. dtype and device default to the first part's."""
    dtype, device = dtype or parts[0].dtype, device or parts[0].device
    shape = (sum(map(len, parts)), parts[0].shape[1])
    if device.type != "cpu":
        whole = torch.empty(shape, dtype=dtype, device=device)
        upload.fill(whole, parts)
        return whole
    whole, first = pages.zeros(shape, dtype), 0
    for part in parts:
        whole[first : first + len(part)].copy_(part)
        first += len(part)
    return whole


def rows_of(parts: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Yields (first row, rows) of the concatenated `parts` [rows, k], at most CONVERTED_ROWS at a time, as `dtype`."""
    first = 0
    for part in parts:
        assert part.shape[1] == parts[0].shape[1]
        for at in range(0, len(part), CONVERTED_ROWS):
            rows = part[at : at + CONVERTED_ROWS].to(dtype).contiguous()
            yield first, rows
            first += len(rows)
