"""Triton: residual add with RMS norm, and norm with rotary embedding per head. Twins in reference.py.

One program reduces one row (a token's hidden state, or one head of one token), so that a row's result never depends on
another row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < size
    total = tl.load(x_ptr + row * size + cols, mask=inside, other=0.0)
    if ADD:
        # The sum is rounded to the dtype before the norm, as it is what the next layer adds to.
        residual = tl.load(residual_ptr + row * size + cols, mask=inside, other=0.0)
        total = (total.to(tl.float32) + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * size + cols, total, mask=inside)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * size + cols, (wide * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_rope_kernel(
    x_ptr, weight_ptr, cos_sin_ptr, positions_ptr, out_ptr, num_heads, token_stride, eps,
    HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token, head = row // num_heads, row % num_heads
    cols = tl.arange(0, BLOCK)
    inside = cols < HALF
    source = x_ptr + token * token_stride + head * 2 * HALF + cols
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)
        first = first * scale * tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        second = second * scale * tl.load(weight_ptr + HALF + cols, mask=inside, other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_sin_ptr + position * 2 * HALF + cols, mask=inside, other=0.0)
    sin = tl.load(cos_sin_ptr + position * 2 * HALF + HALF + cols, mask=inside, other=0.0)
    target = out_ptr + row * 2 * HALF + cols
    tl.store(target, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + HALF, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As reference.rms_norm; x is contiguous."""
    out = torch.empty_like(x)
    size = x.shape[-1]
    grid = (x.numel() // size,)
    _add_rms_norm_kernel[grid](x, x, weight, out, out, size, eps, ADD=False, BLOCK=triton.next_power_of_2(size))
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As reference.add_rms_norm; x and residual are contiguous."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    grid = (x.numel() // size,)
    _add_rms_norm_kernel[grid](x, residual, weight, out, total, size, eps, ADD=True, BLOCK=triton.next_power_of_2(size))
    return out, total


def norm_rope(x: Tensor, weight: Tensor | None, eps: float, cos_sin: Tensor, positions: Tensor) -> Tensor:
    """As reference.norm_rope; the heads of one token lie together, tokens may be strided. Contiguous result."""
    num_tokens, num_heads, head_dim = x.shape
    assert x.stride(1) == head_dim and x.stride(2) == 1
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = head_dim // 2
    _norm_rope_kernel[(num_tokens * num_heads,)](
        x, weight if weight is not None else x, cos_sin, positions, out, num_heads, x.stride(0), eps,
        HALF=half, BLOCK=triton.next_power_of_2(half), NORM=weight is not None,
    )  # fmt: skip
    return out
