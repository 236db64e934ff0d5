"""Triton: matrix products whose rows do not depend on each other. Twin: reference.linear.

How a weight is walked through along K is decided once, from its shape. The steps of a segment are added up in order, in
float32, by tl.dot; then the segments, in order. Of few rows the segments are computed beside each other, so that enough
programs read the weight, and a second kernel adds them; of many rows one program computes them one after the other. The
bits are the same.

The weight is tl.dot's left operand. So it is the result's columns, never its rows, that fill the 64 which wgmma (sm_90)
takes at least: the instruction is the same for one row as for thousands. And weights of eight bits are widened in
registers.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

STEP_BYTES = 128  # of a row of x in one step along K
PROGRAMS = 256  # that read a weight at one row, if its K is long enough
MIN_STEPS, MAX_SEGMENTS = 4, 16
GROUP = 16  # tiles of rows beside each other, for the sake of the L2 cache
SUM_BLOCK = 256


class Schedule(NamedTuple):
    """The order in which a weight's products are added up."""

    block_k: int  # elements of a step along K
    steps: int  # of a segment; the last one may have fewer
    segments: int


class Tile(NamedTuple):
    """What a program computes: `columns` of the result (64 to four warps) and `rows`. No bit depends on it."""

    columns: int
    rows: int
    num_warps: int
    num_stages: int


FEW, SOME, MANY = Tile(64, 16, 4, 6), Tile(64, 64, 4, 4), Tile(128, 128, 8, 3)
ENOUGH = 64  # tiles for MANY rows that keep a GPU busy


@triton.jit
def _segment(
    x_ptr, weight_ptr, row, column, rows, n, k, x_stride, first, last,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """What the steps from `first` to `last` add up to: [BLOCK_N, BLOCK_M] float32."""
    step = tl.arange(0, BLOCK_K)
    # Beyond the last column the last one is read again; nothing of it is stored.
    weight_place = weight_ptr + tl.minimum(column, n - 1).to(tl.int64)[:, None] * k + step[None, :]
    x_place = x_ptr + row.to(tl.int64)[None, :] * x_stride + step[:, None]
    wanted = (row < rows)[None, :]
    # There is always a step. Where ptxas must reckon with none, it may end each wgmma before the next (C7515).
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


@triton.jit(do_not_specialize=["rows", "num_steps", "steps"])
def _linear_kernel(
    x_ptr, weight_ptr, scale_ptr, out_ptr, rows, n, k, x_stride, num_steps, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    WALK: tl.constexpr, SCALED: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # Programs follow each other down GROUP tiles of rows, then go on to the next columns.
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
            total += _segment(
                x_ptr, weight_ptr, row, column, rows, n, k, x_stride, first, last,
                BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, UPCAST,
            )  # fmt: skip
    else:
        first = segment * steps
        last = tl.minimum(first + steps, num_steps)
        total = _segment(
            x_ptr, weight_ptr, row, column, rows, n, k, x_stride, first, last,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, UPCAST,
        )  # fmt: skip
    if SCALED:
        total *= tl.load(scale_ptr + column, mask=column < n, other=0.0)[:, None]
    place = segment.to(tl.int64) * rows * n + row.to(tl.int64)[None, :] * n + column[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=(row < rows)[None, :] & (column < n)[:, None])


@triton.jit(do_not_specialize=["rows"])
def _sum_kernel(
    partial_ptr, scale_ptr, out_ptr, rows, n, SEGMENTS: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < rows * n
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for segment in tl.static_range(SEGMENTS):
        total += tl.load(partial_ptr + segment * rows * n + place, mask=inside, other=0.0)
    if SCALED:
        total *= tl.load(scale_ptr + place % n, mask=inside, other=0.0)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


def schedule_for(n: int, k: int, dtype: torch.dtype) -> Schedule:
    """Of a weight [n, k] that is multiplied with x of `dtype`: the same for any number of rows."""
    block_k = STEP_BYTES // dtype.itemsize
    num_steps = triton.cdiv(k, block_k)
    segments = min(triton.cdiv(PROGRAMS, triton.cdiv(n, FEW.columns)), num_steps // MIN_STEPS, MAX_SEGMENTS)
    steps = triton.cdiv(num_steps, max(1, segments))
    return Schedule(block_k, steps, triton.cdiv(num_steps, steps))


def enough(rows: int, n: int) -> bool:
    """Whether tiles alone keep a GPU busy, without segments beside each other."""
    return rows > SOME.rows and triton.cdiv(rows, MANY.rows) * triton.cdiv(n, MANY.columns) >= ENOUGH


def workspace_bytes(rows: int) -> int:
    """The most that a product of so many rows takes beside its operands and its result, whatever the weight."""
    # Segments of n columns: PROGRAMS tiles, and as many again where the last segment is not full. Of few rows, all of
    # them; of more, as long as there are not ENOUGH tiles.
    return torch.float32.itemsize * min(
        rows * 2 * PROGRAMS * FEW.columns, MAX_SEGMENTS * ENOUGH * MANY.columns * MANY.rows
    )


def product(x: Tensor, weight: Tensor, scales: Tensor | None, schedule: Schedule, dtype: torch.dtype) -> Tensor:
    """x [rows, k], whose rows may be strided, times the transpose of weight [n, k] -> [rows, n] of `dtype`.

    weight has x's dtype; or int8 or float8_e4m3fn, and each sum is multiplied by its column's of `scales` [n] float32.
    """
    rows, n = x.shape[0], weight.shape[0]
    many = enough(rows, n)
    small = FEW if rows <= FEW.rows else SOME
    tile = MANY if many and x.dtype != torch.float32 else small
    # One segment needs no second accumulator, which is half of the registers.
    return multiply(x, weight, scales, schedule, dtype, tile, split=not many or schedule.segments == 1)


def multiply(
    x: Tensor, weight: Tensor, scales: Tensor | None, schedule: Schedule, dtype: torch.dtype, tile: Tile, split: bool
) -> Tensor:
    """The product by tiles of this shape; `split`: each segment by a program of its own, not one after the other."""
    (rows, k), n = x.shape, weight.shape[0]
    assert x.stride(1) == 1 and weight.shape[1] == k and weight.is_contiguous()
    block_k, steps, segments = schedule
    out = torch.empty(rows, n, dtype=dtype, device=x.device)
    scale = weight if scales is None else scales
    partial = split and segments > 1
    target = torch.empty(segments, rows, n, dtype=torch.float32, device=x.device) if partial else out
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(n, tile.columns)
    _linear_kernel[tiles, segments if split else 1](
        x, weight, scale, target, rows, n, k, x.stride(0), triton.cdiv(k, block_k), steps,
        BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=block_k, GROUP=GROUP,
        WALK=not split, SCALED=scales is not None and not partial, EVEN_K=k % block_k == 0,
        # Triton's interpreter computes bf16 tl.dot wrongly without a word (3.7.1): float32 there.
        UPCAST=triton.knobs.runtime.interpret,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if partial:
        _sum_kernel[(triton.cdiv(rows * n, SUM_BLOCK),)](
            target, scale, out, rows, n, SEGMENTS=segments, SCALED=scales is not None, BLOCK=SUM_BLOCK
        )
    return out
