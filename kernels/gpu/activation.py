"""Triton: the MLP's activation, with and without a gate. Twin: reference.activate. Elementwise, so it is
batch-invariant."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rounding import cdiv
from kernels.program import ACTIVATIONS

BLOCK = 1024


@triton.jit
def _activation(x, alpha, limit, KIND: tl.constexpr):
    """Returns the activation of x float32. NaN stays NaN."""
    tl.static_assert(
        KIND == "silu" or KIND == "gelu_tanh" or KIND == "gelu" or KIND == "relu2" or KIND == "clamped_silu"
    )
    if KIND == "clamped_silu":
        limited = tl.where(x > limit, limit, x)
        out = limited * tl.sigmoid(alpha * limited)
    elif KIND == "silu":
        out = x * tl.sigmoid(x)
    elif KIND == "gelu_tanh":
        # 0.5 * (1 + tanh(z)) is the sigmoid of 2 z, z = sqrt(2 / pi) * (x + 0.044715 x**3).
        out = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "gelu":
        out = 0.5 * x * (1.0 + tl.erf(0.7071067811865476 * x))
    else:
        positive = tl.where(x < 0.0, 0.0, x)
        out = positive * positive
    return out


@triton.jit
def _activate_kernel(
    x_ptr, out_ptr, size, row_stride, alpha, limit, KIND: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < size
    first = tl.load(x_ptr + row * row_stride + cols, mask=inside, other=0.0).to(tl.float32)
    out = _activation(first, alpha, limit, KIND)
    if GATED:
        second = tl.load(x_ptr + row * row_stride + size + cols, mask=inside, other=0.0).to(tl.float32)
        if KIND == "clamped_silu":
            second = tl.where(second > limit, limit, tl.where(second < -limit, -limit, second)) + 1.0
        out *= second
    tl.store(out_ptr + row * size + cols, out.to(out_ptr.dtype.element_ty), mask=inside)


def activate(x: Tensor, kind: str, gated: bool, alpha: float = 1.0, limit: float = 0.0) -> Tensor:
    """Returns reference.activate: [rows, size] of x [rows, size], gated of x [rows, 2 * size]; its rows may be
    strided. `kind`: one of program.ACTIVATIONS."""
    rows, size = x.shape[0], x.shape[1] // (2 if gated else 1)
    assert x.stride(1) == 1 and kind in ACTIVATIONS
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    _activate_kernel[rows, cdiv(size, BLOCK)](
        x, out, size, x.stride(0), alpha, limit, KIND=kind, GATED=gated, BLOCK=BLOCK
    )
    return out
