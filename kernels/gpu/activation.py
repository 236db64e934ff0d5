"""Triton: the MLP's gated activation. Twin: reference.silu_mul. Elementwise, so it is batch-invariant."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, size, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < size
    gate = tl.load(gate_up_ptr + row * row_stride + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + size + cols, mask=inside, other=0.0).to(tl.float32)
    mixed = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * size + cols, mixed.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Returns reference.silu_mul: [rows, size] of gate_up [rows, 2 * size]; its rows may be strided."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul_kernel[rows, triton.cdiv(size, BLOCK)](gate_up, out, size, gate_up.stride(0), BLOCK=BLOCK)
    return out
