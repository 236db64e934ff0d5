"""Triton: RMS norm and layer norm of rows or of parts of rows, with and without a fused residual add. Twins:
reference.norm, reference.add_norm.

Batch invariance: one program reduces one part of one row; its shape follows from the weight's shape.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rounding import next_power_of_2

# Elements of a part. Up to NARROW one warp computes it, above WIDE eight do, otherwise four.
NARROW, WIDE = 256, 2048


@triton.jit
def _norm_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, total_ptr, size, x_stride, factor, eps,
    GROUPS: tl.constexpr, OWN: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr, CENTRED: tl.constexpr,
    BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < size
    source, target, weights = row * x_stride + cols, row * size + cols, cols
    if GROUPS > 1:
        group = tl.program_id(1)
        source += group * size
        target = (row * GROUPS + group) * size + cols
        if OWN:
            weights += group * size
    total = tl.load(x_ptr + source, mask=inside, other=0.0)
    if ADD:
        # The sum is rounded to the dtype before the norm, because it is also the next residual.
        residual = tl.load(residual_ptr + target, mask=inside, other=0.0).to(tl.float32)
        added = total.to(tl.float32)
        summed = tl.fma(added, factor, residual) if SCALED else added + residual
        total = summed.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + target, total, mask=inside)
    wide = total.to(tl.float32)
    if CENTRED:
        wide = tl.where(inside, wide - tl.sum(wide, axis=0) / size, 0.0)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    out = wide * scale * tl.load(weight_ptr + weights, mask=inside, other=0.0)
    if BIASED:
        out += tl.load(bias_ptr + weights, mask=inside, other=0.0)
    tl.store(out_ptr + target, out.to(out_ptr.dtype.element_ty), mask=inside)


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
    """Returns reference.norm of x [rows, size] or [rows, groups, size]; rows may be strided, the groups of a row are
    contiguous. weight, bias: [size] or [groups, size] float32."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, 1.0, weight, bias, out, out, eps, centred)
    return out


def add_norm(
    x: Tensor, residual: Tensor, factor: float, weight: Tensor, bias: Tensor | None, eps: float, centred: bool
) -> tuple[Tensor, Tensor]:
    """Returns reference.add_norm: (norm of residual + factor * x, that sum). All [rows, size]; the rows of x may be
    strided, residual is contiguous."""
    assert x.dim() == 2 and residual.is_contiguous() and residual.shape == x.shape and residual.dtype == x.dtype
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(x, residual, factor, weight, bias, out, total, eps, centred)
    return out, total


def _launch(
    x: Tensor, residual: Tensor | None, factor: float, weight: Tensor, bias: Tensor | None, out: Tensor, total: Tensor,
    eps: float, centred: bool,
) -> None:  # fmt: skip
    rows, size = x.shape[0], x.shape[-1]
    groups = x.shape[1] if x.dim() == 3 else 1
    assert x.stride(-1) == 1 and (x.dim() == 2 or x.stride(1) == size)
    assert weight.shape in ((size,), (groups, size)) and weight.dtype == torch.float32 and weight.is_contiguous()
    if bias is not None:
        assert bias.shape == weight.shape and bias.dtype == torch.float32 and bias.is_contiguous()
    block = next_power_of_2(size)
    _norm_kernel[rows, groups](
        x, x if residual is None else residual, weight, weight if bias is None else bias, out, total,
        size, x.stride(0), factor, eps,
        GROUPS=groups, OWN=weight.dim() == 2, ADD=residual is not None, SCALED=factor != 1.0, CENTRED=centred,
        BIASED=bias is not None, BLOCK=block, num_warps=1 if block <= NARROW else 8 if block > WIDE else 4,
    )  # fmt: skip
