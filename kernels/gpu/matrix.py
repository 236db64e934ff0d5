"""Weights as the Triton products read them: in the activations' dtype, or int8 or fp8 with one scale per output."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference
from kernels.gpu import library
from kernels.gpu.card import card_of
from kernels.gpu.linear import product
from kernels.gpu.linear_tiling import launches_for
from kernels.weight_parts import joined

QUANTISED_ROWS = 4096  # at once, because quantising needs float32 temporaries
EIGHT_BITS = {
    "int8": (torch.int8, reference.quantise),
    "fp8": (torch.float8_e4m3fn, reference.quantise_fp8),
}


class TritonMatrix:
    """A Matrix [n, k], n outputs and k inputs, not quantised: in the activations' dtype.

    linear.py multiplies it, or, with many rows and the same bits, library.py.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous()
        card = card_of(weight.device)
        self.launches = launches_for(*weight.shape, weight.dtype, weight.dtype, card)
        self._library_rows = library.library_rows(self.weight, self.launches, card)

    def product(self, x: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None) -> Tensor:
        assert x.dtype == self.weight.dtype
        if x.shape[0] >= self._library_rows and bias is None and dtype in (None, x.dtype):
            return library.product(x, self.weight)
        return product(x, self.weight, None, bias, self.launches, dtype or x.dtype)

    def row_classes(self, most: int) -> Sequence[int]:
        return self.launches.row_classes(most)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class EightBitMatrix:
    """A quantised Matrix: `qweight` [n, k] int8 or float8_e4m3fn times `scales` [n] float32, one per output.

    `dtype`: of the activations.
    """

    def __init__(self, qweight: Tensor, scales: Tensor, dtype: torch.dtype) -> None:
        self.qweight, self.scales, self._dtype = qweight.contiguous(), scales, dtype
        self.launches = launches_for(*qweight.shape, dtype, qweight.dtype, card_of(qweight.device))

    def product(self, x: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None) -> Tensor:
        assert x.dtype == self._dtype
        return product(x, self.qweight, self.scales, bias, self.launches, dtype or x.dtype)

    def row_classes(self, most: int) -> Sequence[int]:
        return self.launches.row_classes(most)

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the dequantised rows `ids` [count] as [count, k], in the activations' dtype."""
        # Indexed as bytes, because torch cannot index every 8-bit dtype.
        taken = self.qweight.view(torch.uint8)[ids].view(self.qweight.dtype)
        return (taken.float() * self.scales[ids, None]).to(self._dtype)


def matrix_of(
    parts: Sequence[Tensor],
    quantization: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> TritonMatrix | EightBitMatrix:
    """Returns a copy of `parts` [rows, k], concatenated along rows, as a Matrix (Ops.matrix).

    `quantization`: one of EIGHT_BITS; None: the elements have `dtype`.
    """
    if quantization is None:
        return TritonMatrix(joined(parts, dtype, device))
    whole = joined(parts, dtype, device)  # freed on return: for a moment both copies take memory
    kind, quantise = EIGHT_BITS[quantization]
    qweight = torch.empty(whole.shape, dtype=kind, device=whole.device)
    scales = torch.empty(len(whole), dtype=torch.float32, device=whole.device)
    for first in range(0, len(whole), QUANTISED_ROWS):
        span = slice(first, first + QUANTISED_ROWS)
        qweight[span], scales[span] = quantise(whole[span])
    return EightBitMatrix(qweight, scales, whole.dtype)
