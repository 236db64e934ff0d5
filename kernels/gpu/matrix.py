"""Weights as the Triton products read them: as they are, or in eight bits each with one scale for each row."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference
from kernels.gpu.linear import product, schedule_for
from kernels.weight_parts import joined

QUANTISED_ROWS = 4096  # at once: what they are computed through is float32
EIGHT_BITS = {
    "int8": (torch.int8, reference.quantise),
    "fp8": (torch.float8_e4m3fn, reference.quantise_fp8),
}


class TritonMatrix:
    """A weight [n, k] of the type of what it is multiplied with."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous()
        self.schedule = schedule_for(weight.shape[0], weight.shape[1], weight.dtype)

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        assert x.dtype == self.weight.dtype
        return product(x, self.weight, None, self.schedule, dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class EightBitMatrix:
    """Numbers [n, k] of eight bits, and `scales` [n] float32 that they are to be multiplied by.

    `dtype`: of what the weight is multiplied with.
    """

    def __init__(self, numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        self.qweight, self.scales, self._dtype = numbers.contiguous(), scales, dtype
        self.schedule = schedule_for(numbers.shape[0], numbers.shape[1], dtype)

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        assert x.dtype == self._dtype
        return product(x, self.qweight, self.scales, self.schedule, dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """As near as they come."""
        # As bytes, for torch does not take rows of every type.
        taken = self.qweight.view(torch.uint8)[ids].view(self.qweight.dtype)
        return (taken.float() * self.scales[ids, None]).to(self._dtype)


def matrix_of(
    parts: Sequence[Tensor],
    quantization: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> TritonMatrix | EightBitMatrix:
    """The weight that `parts` [rows, k] make beneath each other (Ops.matrix), in one of EIGHT_BITS or as it is."""
    if quantization is None:
        return TritonMatrix(joined(parts, dtype, device))
    whole = joined(parts, dtype, device)  # until it is quantised, beside the numbers
    kind, quantise = EIGHT_BITS[quantization]
    numbers = torch.empty(whole.shape, dtype=kind, device=whole.device)
    scales = torch.empty(len(whole), dtype=torch.float32, device=whole.device)
    for first in range(0, len(whole), QUANTISED_ROWS):
        span = slice(first, first + QUANTISED_ROWS)
        numbers[span], scales[span] = quantise(whole[span])
    return EightBitMatrix(numbers, scales, whole.dtype)
