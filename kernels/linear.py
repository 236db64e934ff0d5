"""Triton: matrix products whose rows do not depend on each other. Twin: reference.linear.

Every program walks along K in steps of one size, in order, and adds up in float32; nothing is split along K, and the
tile is the same for any number of rows, because its shape decides which instructions the compiler picks.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M, BLOCK_N = 64, 64
BYTES_K = 128  # of one row in a step along K


@triton.jit
def _linear_kernel(
    x_ptr, weight_ptr, out_ptr, rows, n, k, x_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    step = tl.arange(0, BLOCK_K)
    x_place = row.to(tl.int64)[:, None] * x_stride + step[None, :]
    weight_place = column.to(tl.int64)[None, :] * k + step[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        inside = start + step < k
        x = tl.load(x_ptr + x_place + start, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        weight = tl.load(weight_ptr + weight_place + start, mask=(column < n)[None, :] & inside[:, None], other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
            weight = weight.to(tl.float32)
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    place = row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=(row < rows)[:, None] & (column < n)[None, :])


class TritonMatrix:
    """A weight [n, k] as it is."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.contiguous()

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        (rows, k), n = x.shape, self._weight.shape[0]
        assert x.stride(1) == 1 and k == self._weight.shape[1]
        out = torch.empty(rows, n, dtype=dtype or x.dtype, device=x.device)
        _linear_kernel[triton.cdiv(n, BLOCK_N), triton.cdiv(rows, BLOCK_M)](
            x, self._weight, out, rows, n, k, x.stride(0),
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BYTES_K // x.element_size(),
            # Triton's interpreter computes bf16 tl.dot wrongly without a word (3.7.1): float32 there.
            UPCAST=triton.knobs.runtime.interpret,
        )  # fmt: skip
        return out

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._weight)
