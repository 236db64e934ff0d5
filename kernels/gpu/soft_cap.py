"""Triton: soft caps of logits, and the hyperbolic tangent. Twin: reference.soft_cap. Elementwise, so they
are batch-invariant."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rounding import cdiv

BLOCK = 1024


@triton.jit
def tanh(x):
    """Returns the hyperbolic tangent of x float32, to an absolute error of about 1e-7."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _soft_cap_kernel(logits_ptr, cap, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = logits_ptr + row * size + cols
    logits = tl.load(places, mask=cols < size, other=0.0)
    tl.store(places, cap * tanh(logits / cap), mask=cols < size)


def soft_cap(logits: Tensor, cap: float) -> None:
    """Computes reference.soft_cap of logits [S, vocab] float32, contiguous, in place."""
    rows, size = logits.shape
    assert logits.is_contiguous()
    _soft_cap_kernel[rows, cdiv(size, BLOCK)](logits, cap, size, BLOCK=BLOCK)
