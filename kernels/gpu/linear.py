"""Triton: batch-invariant matrix products with split-K. Twin: reference.linear.

Batch invariance: the K-steps and split-K segments (Schedule) follow from the weight's shape and dtype alone. A
segment's steps are summed in order in float32 by tl.dot; then the segments are summed in order. With few rows, one
program per segment runs and a second kernel sums the segments. With many rows, one program computes all segments. The
order of sums, and so every bit, is the same; so a launch (linear_tiling.py) may be chosen by speed.

The weight is tl.dot's left operand (M). wgmma (sm_90) needs M >= 64, which the output columns fill, never the rows. So
one row uses the same instruction as thousands. Int8 and fp8 weights are upcast in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.linear_tiling import Launch, Launches, Schedule
from kernels.gpu.rounding import cdiv

GROUP = 16  # row tiles per group in the grouped launch order, for L2 reuse
SUM_BLOCK = 256


@triton.jit
def segment_sum(
    x_ptr, weight_ptr, row, column, rows, n, k, x_stride, first, last,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns the sum of the K-steps [first, last): [BLOCK_N, BLOCK_M] float32."""
    step = tl.arange(0, BLOCK_K)
    # Columns past n read column n - 1 again; their results are not stored.
    weight_place = weight_ptr + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k + step[None, :]
    x_place = x_ptr + row.to(tl.int64)[None, :] * x_stride + step[:, None]
    wanted = (row < rows)[None, :]
    # At least one step. If ptxas has to allow for none, it may serialize all wgmma (C7515).
    tl.assume(first < last)
    acc = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for index in range(first, last):
        start = index * BLOCK_K
        if EVEN_K:
            weight = tl.load(weight_place + start)
            x = tl.load(x_place + start, mask=wanted, other=0.0)
        else:
            inside = start + step < k
            weight = tl.load(weight_place + start, mask=inside[None, :], other=0.0)
            x = tl.load(x_place + start, mask=wanted & inside[:, None], other=0.0)
        if UPCAST:
            x = x.to(tl.float32)
        acc = tl.dot(weight.to(x.dtype), x, acc, input_precision="ieee")
    return acc


@triton.jit
def scaled_and_biased(
    total, scale_ptr, bias_ptr, column, inside, SCALED: tl.constexpr, BIASED: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Returns total * scale + bias of each output column. TRANSPOSED: total is [columns, rows], otherwise as `column`.

    An explicit fma rounds once in both kernels below, whether or not a compiler would fuse the two operations.
    """
    if SCALED:
        scale = tl.load(scale_ptr + column, mask=inside, other=0.0)
        if TRANSPOSED:
            scale = scale[:, None]
    if BIASED:
        bias = tl.load(bias_ptr + column, mask=inside, other=0.0)
        if TRANSPOSED:
            bias = bias[:, None]
    if SCALED and BIASED:
        total = tl.fma(total, scale, bias)
    elif SCALED:
        total *= scale
    elif BIASED:
        total += bias
    return total


@triton.jit(do_not_specialize=["rows", "num_steps", "steps"])
def _linear_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, rows, n, k, x_stride, num_steps, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    WALK: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # Grouped launch order: GROUP row tiles, then the next column tile.
    tile, segment = tl.program_id(0), tl.program_id(1)
    in_group = GROUP * tl.cdiv(n, BLOCK_N)
    top = tile // in_group * GROUP
    height = tl.minimum(tl.cdiv(rows, BLOCK_M) - top, GROUP)
    row = (top + tile % in_group % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile % in_group // height * BLOCK_N + tl.arange(0, BLOCK_N)
    if WALK:
        total = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
        for first in range(0, num_steps, steps):
            last = tl.minimum(first + steps, num_steps)
            total += segment_sum(
                x_ptr, weight_ptr, row, column, rows, n, k, x_stride, first, last,
                BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, UPCAST,
            )  # fmt: skip
    else:
        first = segment * steps
        last = tl.minimum(first + steps, num_steps)
        total = segment_sum(
            x_ptr, weight_ptr, row, column, rows, n, k, x_stride, first, last,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, UPCAST,
        )  # fmt: skip
    total = scaled_and_biased(total, scale_ptr, bias_ptr, column, column < n, SCALED, BIASED, True)
    place = segment.to(tl.int64) * rows * n + row.to(tl.int64)[None, :] * n + column[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=(row < rows)[None, :] & (column < n)[:, None])


@triton.jit(do_not_specialize=["rows"])
def _sum_kernel(
    partial_ptr, scale_ptr, bias_ptr, out_ptr, rows, n,
    SEGMENTS: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < rows * n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for segment in tl.static_range(SEGMENTS):
        total += tl.load(partial_ptr + segment * rows * n + place, mask=inside, other=0.0)
    total = scaled_and_biased(total, scale_ptr, bias_ptr, place % n, inside, SCALED, BIASED, False)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


def product(
    x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None, launches: Launches, dtype: torch.dtype
) -> Tensor:
    """Returns x [rows, k] (rows may be strided) @ weight [n, k].T + bias [n] float32 as [rows, n] of `dtype`.

    The weight has x's dtype; or it is int8 or float8_e4m3fn, and column j's sum is multiplied by scales[j]
    (`scales` [n] float32) before the bias is added.
    """
    if not x.shape[0]:  # a step of prompt chunks alone samples nothing: behind the last attention there are no rows
        return torch.empty(0, weight.shape[0], dtype=dtype, device=x.device)
    return multiply(x, weight, scales, bias, launches.schedule, dtype, launches.at(x.shape[0]))


def multiply(
    x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None, schedule: Schedule, dtype: torch.dtype,
    launch: Launch,
) -> Tensor:  # fmt: skip
    """Returns `product` with an explicit schedule and launch."""
    (rows, k), n = x.shape, weight.shape[0]
    assert x.stride(1) == 1 and weight.shape[1] == k and weight.is_contiguous()
    assert bias is None or (bias.shape == (n,) and bias.dtype == torch.float32 and bias.is_contiguous())
    block_k, steps, segments = schedule
    # A single segment needs no second accumulator, which would take registers.
    tile, split = launch.tile, launch.split or segments == 1
    out = torch.empty(rows, n, dtype=dtype, device=x.device)
    ends = weight if scales is None else scales, weight if bias is None else bias
    scaled, biased = scales is not None, bias is not None
    partial = split and segments > 1
    target = torch.empty(segments, rows, n, dtype=torch.float32, device=x.device) if partial else out
    tiles = cdiv(rows, tile.rows) * cdiv(n, tile.columns)
    _linear_kernel[tiles, segments if split else 1](
        x, weight, *ends, target, rows, n, k, x.stride(0), cdiv(k, block_k), steps,
        BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=block_k, GROUP=GROUP,
        WALK=not split, SCALED=scaled and not partial, BIASED=biased and not partial, EVEN_K=k % block_k == 0,
        # The interpreter of Triton 3.7.1 computes bf16 tl.dot wrongly, without an error: upcast to float32 there.
        UPCAST=triton.knobs.runtime.interpret,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if partial:
        _sum_kernel[(cdiv(rows * n, SUM_BLOCK),)](
            target, *ends, out, rows, n, SEGMENTS=segments, SCALED=scaled, BIASED=biased, BLOCK=SUM_BLOCK
        )
    return out
