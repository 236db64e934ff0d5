"""Triton: RMS norm, with and without a fused residual add. Twins: reference.rms_norm, reference.add_rms_norm.

Batch invariance: one program reduces one row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE = 2048  # elements: longer rows get eight warps; depends on the model's hidden size, never on the batch


@triton.jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < size
    total = tl.load(x_ptr + row * size + cols, mask=inside, other=0.0)
    if ADD:
        # The sum is rounded to the dtype before the norm, because it is also the next residual.
        residual = tl.load(residual_ptr + row * size + cols, mask=inside, other=0.0)
        total = (total.to(tl.float32) + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * size + cols, total, mask=inside)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * size + cols, (wide * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns reference.rms_norm over x's last dimension; x is contiguous."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, out, eps, add=False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns reference.add_rms_norm: (norm of the sum, sum); x and residual are contiguous."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, out, total, eps, add=True)
    return out, total


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, *, add: bool) -> None:
    size = x.shape[-1]
    assert x.is_contiguous() and residual.is_contiguous() and x.shape == residual.shape
    block = triton.next_power_of_2(size)
    _rms_norm_kernel[(x.numel() // size,)](
        x, residual, weight, out, total, size, eps, ADD=add, BLOCK=block, num_warps=8 if block > WIDE else 4
    )
