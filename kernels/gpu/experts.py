"""Triton: grouped products of tokens with their experts, and their weighted sums. Twin: reference.mix.

(token, slot) pairs are sorted by expert, on the device. A program computes a tile of outputs for some pairs of one
expert. Batch invariance: each output is summed in the order of its weight's Schedule (linear.py), whatever the tile,
and a token's experts are summed in the order in which they were chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.card import card_of
from kernels.gpu.linear import scaled_and_biased, segment_sum
from kernels.gpu.linear_tiling import ONE_ACCUMULATOR, Tile, schedule_for, tiles_of
from kernels.gpu.matrix import EIGHT_BITS, QUANTISED_ROWS
from kernels.gpu.rounding import cdiv
from kernels.weight_parts import joined

BLOCK = 256  # columns of a token's sum that a program computes


class Order(NamedTuple):
    """How P (token, slot) pairs are sorted by expert."""

    pairs: Tensor  # [P] int64: the pair at each place
    places: Tensor  # [P] int64: the place of each pair
    starts: Tensor  # [experts + 1] int32: an expert's first place


def ordered(ids: Tensor, num_experts: int) -> Order:
    """Returns the order of the pairs of ids [tokens, top_k]; those of an expert stay in the order of tokens. Waits for
    nothing on the host, so it can be part of a CUDA graph."""
    numbers, pairs = ids.flatten().sort(stable=True)
    places = torch.empty_like(pairs)
    places[pairs] = torch.arange(len(pairs), device=ids.device)
    experts = torch.arange(num_experts + 1, dtype=numbers.dtype, device=ids.device)
    return Order(pairs, places, torch.searchsorted(numbers, experts, out_int32=True))


@triton.jit
def _tile_of(program, starts_ptr, num_experts, BLOCK_M: tl.constexpr):
    """Returns (expert, first place, end) of a row tile: tiles of an expert follow each other, those of experts without
    rows are none. The end is the first place for tiles behind the last."""
    expert = 0
    before = 0  # tiles of the experts before
    first = tl.load(starts_ptr)
    end = tl.load(starts_ptr + 1)
    while (expert < num_experts - 1) & (program >= before + tl.cdiv(end - first, BLOCK_M)):
        before += tl.cdiv(end - first, BLOCK_M)
        expert += 1
        first = end
        end = tl.load(starts_ptr + expert + 1)
    return expert, tl.minimum(first + (program - before) * BLOCK_M, end), end


@triton.jit(do_not_specialize=["rows", "num_steps", "steps", "num_experts"])
def _experts_kernel(
    x_ptr, pairs_ptr, starts_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, rows, n, k, num_steps, steps, num_experts,
    TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATHERED: tl.constexpr,
    SCALED: tl.constexpr, BIASED: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Computes out [places, n] of one tile. GATHERED: x has a row for each token, not for each place."""
    expert, first_place, end = _tile_of(tl.program_id(1), starts_ptr, num_experts, BLOCK_M)
    if first_place >= end:
        return
    place = first_place + tl.arange(0, BLOCK_M)
    inside = place < end
    row = place
    if GATHERED:
        row = tl.load(pairs_ptr + place, mask=inside, other=0) // TOP_K
    row = tl.where(inside, row, rows)  # such rows are not read
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    own_weight = weight_ptr + expert.to(tl.int64) * n * k
    total = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    for first in range(0, num_steps, steps):
        last = tl.minimum(first + steps, num_steps)
        total += segment_sum(
            x_ptr, own_weight, row, column, rows, n, k, k, first, last, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, UPCAST
        )
    total = scaled_and_biased(
        total, scale_ptr + expert * n, bias_ptr + expert * n, column, column < n, SCALED, BIASED, True
    )
    tl.store(
        out_ptr + place.to(tl.int64)[None, :] * n + column[:, None],
        total.to(out_ptr.dtype.element_ty),
        mask=inside[None, :] & (column < n)[:, None],
    )


@triton.jit
def _sum_kernel(
    parts_ptr, places_ptr, weights_ptr, added_ptr, out_ptr, size,
    TOP_K: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    if ADDS:
        total = tl.load(added_ptr + token * size + column, mask=inside, other=0.0).to(tl.float32)
    for slot in tl.static_range(TOP_K):
        place = tl.load(places_ptr + token * TOP_K + slot)
        weight = tl.load(weights_ptr + token * TOP_K + slot)
        part = tl.load(parts_ptr + place * size + column, mask=inside, other=0.0).to(tl.float32)
        total = tl.fma(weight, part, total)
    tl.store(out_ptr + token * size + column, total.to(out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class TritonExperts:
    """The weights [experts, n, k] of a layer's experts, in the activations' dtype, or of eight bits with `scales`
    [experts, n] float32. `dtype`: of the activations."""

    weight: Tensor
    scales: Tensor | None
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def tiles(self) -> list[Tile]:
        """Those that fit the registers, with the fewest rows first."""
        return [tile for tile in tiles_of(card_of(self.weight.device), self.dtype) if _is_light(tile)]

    def tile(self, pairs: int) -> Tile:
        """Returns the tile for so many pairs: the first one that an expert's rows fit into, if all have as many. No bit
        depends on it."""
        each = -(-pairs // len(self))
        return next((tile for tile in self.tiles if tile.rows >= each), self.tiles[-1])

    def row_classes(self, most: int, top_k: int) -> Sequence[int]:
        found = {1, *(tile.rows * len(self) // top_k + 1 for tile in self.tiles[:-1])}
        return sorted(count for count in found if count <= most)

    def product(self, x: Tensor, order: Order, top_k: int, biases: Tensor | None, *, gathered: bool) -> Tensor:
        """Returns the products of all places with their experts, [places, n] in x's dtype. `gathered`: x [tokens, k];
        else [places, k]."""
        num_experts, n, k = self.weight.shape
        pairs = len(order.pairs)
        assert x.is_contiguous() and x.shape[1] == k and x.dtype == self.dtype
        block_k, steps, _ = schedule_for(n, k, self.dtype)
        tile = self.tile(pairs)
        out = torch.empty(pairs, n, dtype=self.dtype, device=x.device)
        row_tiles = cdiv(pairs, tile.rows) + min(num_experts, pairs)  # at least as many as there are
        ends = self.weight if self.scales is None else self.scales, self.weight if biases is None else biases
        _experts_kernel[cdiv(n, tile.columns), row_tiles](
            x, order.pairs, order.starts, self.weight, *ends, out, len(x), n, k, cdiv(k, block_k), steps,
            num_experts,
            TOP_K=top_k, BLOCK_M=tile.rows, BLOCK_N=tile.columns, BLOCK_K=block_k, GATHERED=gathered,
            SCALED=self.scales is not None, BIASED=biases is not None, EVEN_K=k % block_k == 0,
            # The interpreter of Triton 3.7.1 computes bf16 tl.dot wrongly, without an error: upcast to float32 there.
            UPCAST=triton.knobs.runtime.interpret,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        return out


def experts_of(
    weights: Sequence[Sequence[Tensor]],
    quantization: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> TritonExperts:
    """Returns a copy of each expert's parts, concatenated along rows (Ops.experts). `quantization`: as matrix_of."""
    rows = sum(map(len, weights[0]))
    whole = joined([part for parts in weights for part in parts], dtype, device)
    shape = (len(weights), rows, whole.shape[1])
    if quantization is None:
        return TritonExperts(whole.view(shape), None, whole.dtype)
    kind, quantise = EIGHT_BITS[quantization]
    qweight = torch.empty(whole.shape, dtype=kind, device=whole.device)
    scales = torch.empty(len(whole), dtype=torch.float32, device=whole.device)
    for first in range(0, len(whole), QUANTISED_ROWS):
        span = slice(first, first + QUANTISED_ROWS)
        qweight[span], scales[span] = quantise(whole[span])
    return TritonExperts(qweight.view(shape), scales.view(shape[:2]), whole.dtype)


def summed(parts: Tensor, order: Order, weights: Tensor, added: Tensor | None) -> Tensor:
    """Returns each token's sum of `parts` [places, n] times `weights` [tokens, top_k], with `added` [tokens, n]."""
    (tokens, top_k), size = weights.shape, parts.shape[1]
    out = torch.empty(tokens, size, dtype=parts.dtype, device=parts.device)
    assert added is None or added.is_contiguous()
    _sum_kernel[tokens, cdiv(size, BLOCK)](
        parts, order.places, weights, parts if added is None else added, out, size,
        TOP_K=top_k, ADDS=added is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def _is_light(tile: Tile) -> bool:
    return tile.columns * tile.rows <= ONE_ACCUMULATOR
