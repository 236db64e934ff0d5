"""Checks of Triton's paged attention: against its twin, and bit for bit under chunking and KV splits (cases.py)."""

from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import attention
from kernels.gpu.attention_tiling import Tiling, tiling_of
from tests.kernels.cases import randn, share_of, tolerance

SPARE_BLOCKS = 3


@dataclass(frozen=True)
class AttentionCase:
    """Inputs of paged attention: prefill chunks and decode tokens in one batch, with shuffled block tables.

    `query` [tokens, heads, head_dim], `keys` and `values` [blocks, block_size, kv_heads, head_dim], `tables` [requests,
    blocks]. Cache slots of no request hold NaN, and unused entries of a block table point to such a block.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    query_lens: list[int]
    seq_lens: list[int]
    window: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None

    def triton(self) -> Tensor:
        return attention.paged_attention(*self.arguments(), *self.traits())

    def by(self, tiling: Tiling, num_splits: int) -> Tensor:
        return attention.attend(*self.arguments(), *self.traits(), tiling, num_splits)

    def traits(self) -> tuple[int, float, Tensor | None]:
        return self.window, self.soft_cap, self.sinks

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int, int, float]:
        starts, lens = self.places()
        return self.query, self.keys, self.values, self.tables, starts, lens, *self.bounds(), self.scale

    def bounds(self) -> tuple[int, int, int]:
        """Returns (the number of single queries before all others, the most queries, the most keys)."""
        singles = takewhile(lambda count: count == 1, self.query_lens)
        return len(list(singles)), max(self.query_lens), max(self.seq_lens)

    def twin(self, values: Tensor | None = None) -> Tensor:
        starts, lens = self.places()
        values = self.values if values is None else values
        return reference.paged_attention(
            self.query, self.keys, values, self.tables, starts, lens, self.scale, *self.traits()
        )

    def tiling(self) -> Tiling:
        return tiling_of(self.query.dtype, self.query.shape[2], self.query.shape[1] // self.keys.shape[2])

    def places(self) -> tuple[Tensor, Tensor]:
        starts = [0, *torch.tensor(self.query_lens).cumsum(0).tolist()]
        device = self.query.device
        return (
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(self.seq_lens, dtype=torch.int32, device=device),
        )

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)


def attention_case(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
    window: int = 0,
    soft_cap: float = 0.0,
    with_sinks: bool = False,
) -> AttentionCase:
    """Returns random inputs. `lens`: (new tokens, computed tokens) of each request; (1, -1) is padding: one token,
    length 0."""
    query_lens = [queries for queries, _ in lens]
    seq_lens = [queries + context for queries, context in lens]
    blocks = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(blocks) + SPARE_BLOCKS
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).int()
    tables = order[-1].repeat(len(lens), max(1, *blocks))
    foreign = torch.ones(num_blocks, block_size, dtype=torch.bool)
    used = 0
    for row, count in enumerate(blocks):
        tables[row, :count] = own = order[used : used + count]
        places = foreign[own.long()].flatten()
        places[: seq_lens[row]] = False
        foreign[own.long()] = places.view(count, block_size)
        used += count
    caches = [randn(device, dtype, num_blocks, block_size, kv_heads, head_dim, seed=seed + n) for n in (0, 1)]
    for cache in caches:
        cache[foreign.to(device)] = float("nan")
    query = randn(device, dtype, sum(query_lens), kv_heads * group, head_dim, seed=seed + 2)
    sinks = randn(device, torch.float32, kv_heads * group, seed=seed + 3) if with_sinks else None
    return AttentionCase(query, caches[0], caches[1], tables.to(device), query_lens, seq_lens, window, soft_cap, sinks)


def part_of(case: AttentionCase, start: int, end: int) -> AttentionCase:
    """Returns the first request's tokens [start, end) alone, as a chunk after the earlier tokens."""
    query, tables = case.query[start:end], case.tables[:1]
    return replace(case, query=query, tables=tables, query_lens=[end - start], seq_lens=[end])


def last_tokens(case: AttentionCase) -> tuple[AttentionCase, Tensor]:
    """Returns (a decode batch of each request's last token, the indices of these tokens)."""
    rows = torch.tensor(case.query_lens, device=case.query.device).cumsum(0) - 1
    return replace(case, query=case.query[rows], query_lens=[1] * len(case.query_lens)), rows


def decode_beside(decode: AttentionCase, chunk: AttentionCase) -> AttentionCase:
    """Returns one batch: single queries first, then the chunk of one request."""
    return replace(
        decode,
        query=torch.cat((decode.query, chunk.query)),
        tables=torch.cat((decode.tables, chunk.tables)),
        query_lens=decode.query_lens + chunk.query_lens,
        seq_lens=decode.seq_lens + chunk.seq_lens,
    )


def tiled(case: AttentionCase, tile: int | None, segment: int | None) -> Tiling:
    """Returns the production tiling, with `tile` keys per tile and `segment` keys per segment if given."""
    tiling = case.tiling()
    return replace(tiling, keys=tile or tiling.keys, segment=segment or tiling.segment)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Returns whether both tensors have the same bits: +0 and -0 differ."""
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def check_paged_attention(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
    window: int = 0,
    soft_cap: float = 0.0,
    with_sinks: bool = False,
    tile: int | None = None,
    segment: int | None = None,
) -> float:
    case = attention_case(
        device, dtype, lens, kv_heads, group, head_dim, block_size, seed, window, soft_cap, with_sinks
    )
    actual, expected = case.by(tiled(case, tile, segment), 1), case.twin()
    if device.type == "cuda" and dtype != torch.float32:
        # The compiled kernel rounds the softmax weights to 16 bits: half a unit in the last place per summand, and the
        # same for both results. 1e-5 is for float32 rounding.
        half = torch.finfo(dtype).eps / 2
        allowed = half * (1.05 * case.twin(case.values.abs()).float() + 2 * expected.float().abs()) + 1e-5
        return share_of(actual, expected, allowed)
    # Weighted sums of values near 1 cancel: the error is relative to the summands, not to the result.
    return share_of(actual, expected, tolerance(expected, floor=0.25))


def check_cuts_of_attention(
    device: torch.device,
    dtype: torch.dtype,
    length: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    window: int = 0,
    soft_cap: float = 0.0,
    with_sinks: bool = False,
    tile: int | None = None,
    segment: int | None = None,
) -> float:
    """Asserts that a token's result has the same bits however its prompt is divided into chunks, alone or in a batch;
    also with KV splits. Returns 0.0."""
    lens = [(length, 0), (1, -1), (5, 40)]
    shape = (kv_heads, group, head_dim, block_size)
    case = attention_case(device, dtype, lens, *shape, 0, window, soft_cap, with_sinks)
    tiling = tiled(case, tile, segment)
    whole = case.by(tiling, 1)[:length]
    assert torch.isfinite(whole).all(), "not a number"
    for size in (1, 3, 7, length // 2 + 1):
        for start in range(0, length, size):
            end = min(start + size, length)
            part = part_of(case, start, end).by(tiling, 3 if size == 1 else 1)
            assert same_bits(part, whole[start:end]), f"tokens {start} to {end} in chunks of {size} differ"
    return 0.0


def check_splits_of_attention(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
    window: int = 0,
    soft_cap: float = 0.0,
    with_sinks: bool = False,
    tile: int | None = None,
    segment: int | None = None,
) -> float:
    """Asserts that each request's last token, decoded by any number of programs, alone or beside a chunk, has the bits
    that it has within its chunk, and that chunk too. Returns 0.0."""
    case = attention_case(
        device, dtype, lens, kv_heads, group, head_dim, block_size, seed, window, soft_cap, with_sinks
    )
    tiling = tiled(case, tile, segment)
    decode, rows = last_tokens(case)
    within = case.by(tiling, 1)[rows]
    assert torch.isfinite(within).all(), "not a number"
    chunk = part_of(case, 0, case.query_lens[0])
    alone = chunk.by(tiling, 1)
    beside = decode_beside(decode, chunk)
    for count in range(1, -(-max(case.seq_lens) // tiling.segment) + 1):
        assert same_bits(decode.by(tiling, count), within), f"{count} splits differ"
        both = beside.by(tiling, count)
        assert same_bits(both[: len(within)], within), f"{count} splits beside a chunk differ"
        assert same_bits(both[len(within) :], alone), f"a chunk beside {count} splits differs"
    return 0.0
