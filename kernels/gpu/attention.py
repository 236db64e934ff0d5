"""Triton: causal attention over the paged KV cache, of prefill chunks and single queries. Twin: reference.py.

One program computes a tile of queries of one request for one KV head; the query heads of that KV head are rows of the
tile. Batch invariance: keys are cut into segments at fixed absolute positions. Within a segment, an online softmax
(arXiv 2205.14135) runs over key tiles in order. Segments are merged in ascending order, by the same program or, with
KV splits (arXiv 2311.01282), by a second kernel. So neither chunked prefill nor the number of splits changes a token's
bits. docs/decisions/0021-gpu-attention.md
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_segments import mean, merge, sink, store_part
from kernels.gpu.attention_tiling import Tiling, choose_num_splits, tiling_of
from kernels.gpu.rounding import cdiv, next_power_of_2
from kernels.gpu.soft_cap import tanh

MERGED_AT_ONCE = 8  # segments loaded by one unrolled iteration of the merge
NO_WINDOW = 2**30  # tokens: longer than any request


@triton.jit
def _request_of(tile, query_start_loc_ptr, first_request, num_requests, QUERIES: tl.constexpr):
    """Returns (request, tile within the request) of a tile of the launch, by bisection.

    The launch is for `num_requests` requests from `first_request` on. Request r begins at tile query_start_loc[r] //
    QUERIES + r, less that of the first one. So each request gets at least as many tiles as it needs.
    """
    tile += tl.load(query_start_loc_ptr + first_request) // QUERIES + first_request
    low = first_request
    high = first_request + num_requests - 1
    while low < high:
        middle = (low + high + 1) // 2
        first = tl.load(query_start_loc_ptr + middle) // QUERIES + middle
        if first <= tile:
            low = middle
        else:
            high = middle - 1
    return low, tile - (tl.load(query_start_loc_ptr + low) // QUERIES + low)


@triton.jit
def _places(
    table_ptr, first_key, inside, block_stride, token_stride, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Returns the offsets of a tile's keys in the paged cache, in elements: [BLOCK_N] int64."""
    lanes = tl.arange(0, BLOCK_N)
    if BLOCK_SIZE % BLOCK_N == 0:
        block = tl.load(table_ptr + first_key // BLOCK_SIZE)
        offsets = first_key % BLOCK_SIZE + lanes
    elif BLOCK_N % BLOCK_SIZE == 0:
        block = tl.load(table_ptr + first_key // BLOCK_SIZE + lanes // BLOCK_SIZE, mask=inside, other=0)
        offsets = lanes % BLOCK_SIZE
    else:
        keys = first_key + lanes
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=inside, other=0)
        offsets = keys % BLOCK_SIZE
    return block.to(tl.int64) * block_stride + offsets * token_stride


@triton.jit(do_not_specialize=["window", "table_stride", "first_request", "num_requests", "num_segments"])
def _attention_kernel(
    query_ptr, key_cache_ptr, value_cache_ptr, block_tables_ptr, query_start_loc_ptr, seq_lens_ptr, out_ptr,
    part_best_ptr, part_sum_ptr, part_acc_ptr, sinks_ptr,
    scale, cap_scale, window, table_stride, query_stride, block_stride, token_stride, num_kv_heads, first_request,
    num_requests, num_segments,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SEGMENT: tl.constexpr,
    SEARCH: tl.constexpr, SPLIT: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Computes one tile of queries of one KV head. `scale` includes log2(e). SEARCH: requests may have several tiles.
    CAPPED: it also includes the cap, and scores are tanh(cap_scale * score) first. SINKS: of each head.

    SPLIT: the programs of axis 1 share a tile's segments (split i takes segments i, i + splits, ...) and store each
    segment's result in the workspace [tokens, heads, num_segments].
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    TILES: tl.constexpr = SEGMENT // BLOCK_N
    program, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    kv_head = program % num_kv_heads
    # The last tiles of a prefill chunk have the most keys: they are launched first.
    place = tl.num_programs(0) // num_kv_heads - 1 - program // num_kv_heads
    if SEARCH:
        request, tile = _request_of(place, query_start_loc_ptr, first_request, num_requests, QUERIES)
    else:
        request, tile = first_request + place, 0
    start = tl.load(query_start_loc_ptr + request)
    num_queries = tl.load(query_start_loc_ptr + request + 1) - start
    if tile * QUERIES >= num_queries:
        return
    seq_len = tl.load(seq_lens_ptr + request)
    first_position = seq_len - num_queries + tile * QUERIES
    end = tl.minimum(seq_len, first_position + QUERIES)  # exclusive: one past the last key of any row
    first_tile = tl.maximum(first_position - window + 1, 0) // BLOCK_N
    first_segment = first_tile // TILES
    own_segments = tl.cdiv(tl.cdiv(end, SEGMENT) - first_segment - part, parts)
    if SPLIT:  # noqa: SIM102
        if own_segments <= 0:
            return
    last_segment = first_segment + part + (own_segments - 1) * parts
    # Number of key tiles in this program's segments; the last segment may be partial.
    num_tiles = (own_segments - 1) * TILES + tl.minimum(TILES, tl.cdiv(end, BLOCK_N) - last_segment * TILES)
    skipped = tl.where(part == 0, first_tile % TILES, 0)

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    query_index = tile * QUERIES + rows // GROUP
    row_inside = (rows < QUERIES * GROUP) & (query_index < num_queries)
    dim_inside = dims < HEAD_DIM
    head = kv_head * GROUP + rows % GROUP
    num_heads = num_kv_heads * GROUP
    token = (start + query_index).to(tl.int64)
    mask_q = row_inside[:, None] & dim_inside[None, :]
    query = tl.load(
        query_ptr + token[:, None] * query_stride + head[:, None] * HEAD_DIM + dims[None, :], mask=mask_q, other=0.0
    )
    if UPCAST:
        query = query.to(tl.float32)
    last_key = tl.where(row_inside, first_position + rows // GROUP, -1)
    table_ptr = block_tables_ptr + request * table_stride.to(tl.int64)
    key_cache_ptr += kv_head * HEAD_DIM
    value_cache_ptr += kv_head * HEAD_DIM

    total_best = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    total_acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    if SINKS:
        total_best, total_sum = sink(sinks_ptr, head, row_inside, scale)
    best = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    # One loop over the tiles of all segments, so that the pipeline prefetches across segment boundaries.
    for index in range(skipped, num_tiles):
        segment = first_segment + part + index // TILES * parts
        # The previous segment is stored here, not after its last tile. With an `if` after the dot, Triton 3.7.1 reads
        # acc without waiting for its wgmma, and ptxas then serializes all wgmma (C7515).
        if (index % TILES == 0) & (index > skipped):
            if SPLIT:
                store_part(
                    part_best_ptr, part_sum_ptr, part_acc_ptr, best, weight_sum, acc,
                    (token * num_heads + head) * num_segments + segment - parts, dims, row_inside, mask_q, HEAD_DIM,
                )  # fmt: skip
            else:
                total_best, total_sum, total_acc = merge(total_best, total_sum, total_acc, best, weight_sum, acc, scale)
            best = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
            weight_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
            acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
        first_key = segment * SEGMENT + index % TILES * BLOCK_N
        keys = first_key + tl.arange(0, BLOCK_N)
        key_inside = keys < end
        places = _places(table_ptr, first_key, key_inside, block_stride, token_stride, BLOCK_SIZE, BLOCK_N)
        mask_kv = key_inside[:, None]
        if HEAD_DIM < BLOCK_D:
            mask_kv = mask_kv & dim_inside[None, :]
        key = tl.load(key_cache_ptr + places[:, None] + dims[None, :], mask=mask_kv, other=0.0)
        value = tl.load(value_cache_ptr + places[:, None] + dims[None, :], mask=mask_kv, other=0.0)
        if UPCAST:
            key = key.to(tl.float32)
            value = value.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if CAPPED:
            scores = tanh(scores * cap_scale)
        seen = keys[None, :] <= last_key[:, None]
        if WINDOWED:
            seen = seen & (keys[None, :] > last_key[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(tl.fma(scores, scale, (-shift * scale)[:, None]))
        rescale = tl.exp2((best - shift) * scale)
        weight_sum = tl.fma(weight_sum, rescale, tl.sum(weights, axis=1))
        acc = tl.dot(weights.to(value.dtype), value, acc * rescale[:, None], input_precision="ieee")
        best = new_best
    if SPLIT:
        store_part(
            part_best_ptr, part_sum_ptr, part_acc_ptr, best, weight_sum, acc,
            (token * num_heads + head) * num_segments + last_segment, dims, row_inside, mask_q, HEAD_DIM,
        )  # fmt: skip
    else:
        total_best, total_sum, total_acc = merge(total_best, total_sum, total_acc, best, weight_sum, acc, scale)
        out = mean(total_sum, total_acc)
        place_out = (token[:, None] * num_heads + head[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(out_ptr + place_out, out.to(out_ptr.dtype.element_ty), mask=mask_q)


@triton.jit(do_not_specialize=["window", "num_segments"])
def _merge_kernel(
    part_best_ptr, part_sum_ptr, part_acc_ptr, sinks_ptr, query_start_loc_ptr, seq_lens_ptr, out_ptr,
    scale, window, num_segments,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SEGMENT: tl.constexpr, AT_ONCE: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Merges the segments of one head of a request's single query, in ascending order, and stores the result."""
    request, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    token = tl.load(query_start_loc_ptr + request)
    if tl.load(query_start_loc_ptr + request + 1) == token:
        return
    seq_len = tl.load(seq_lens_ptr + request)
    behind = tl.cdiv(seq_len, SEGMENT)
    row = token.to(tl.int64) * num_heads + head
    dims = tl.arange(0, BLOCK_D)[None, :]
    dim_inside = dims < HEAD_DIM
    best = tl.full([1], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([1], dtype=tl.float32)
    acc = tl.zeros([1, BLOCK_D], dtype=tl.float32)
    if SINKS:
        best, weight_sum = sink(sinks_ptr, head + tl.arange(0, 1), head + tl.arange(0, 1) < num_heads, scale)
    for first in range(tl.maximum(seq_len - window, 0) // SEGMENT, behind, AT_ONCE):
        for offset in tl.static_range(AT_ONCE):
            segment = first + offset + tl.arange(0, 1)
            inside = segment < behind
            place = row * num_segments + segment
            part_best = tl.load(part_best_ptr + place, mask=inside, other=float("-inf"))
            part_sum = tl.load(part_sum_ptr + place, mask=inside, other=0.0)
            part_acc = tl.load(
                part_acc_ptr + place[:, None] * HEAD_DIM + dims, mask=inside[:, None] & dim_inside, other=0.0
            )
            best, weight_sum, acc = merge(best, weight_sum, acc, part_best, part_sum, part_acc, scale)
    out = mean(weight_sum, acc)
    tl.store(out_ptr + row * HEAD_DIM + dims, out.to(out_ptr.dtype.element_ty), mask=dim_inside)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_decodes: int,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Returns reference.paged_attention: [T, H, D] in query's dtype.

    The first `num_decodes` requests have one query each, and no other request should. `max_query_len` and
    `max_seq_len` are upper bounds. All three are known on the host; they decide the launches, never a bit.
    query [T, H, D] may be strided along T only; the caches are contiguous.
    """
    num_heads, head_dim = query.shape[1:]
    kv_heads = key_cache.shape[2]
    return attend(
        query, key_cache, value_cache, block_tables, query_start_loc, seq_lens, num_decodes, max_query_len, max_seq_len,
        scale, window, soft_cap, sinks, tiling_of(query.dtype, head_dim, num_heads // kv_heads),
        choose_num_splits(num_decodes, kv_heads),
    )  # fmt: skip


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_decodes: int,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: Tensor | None,
    tiling: Tiling,
    num_splits: int,
) -> Tensor:
    """Returns paged_attention with an explicit tiling and number of KV splits of the first `num_decodes` requests.

    With several splits those requests have a launch of their own, and the others walk all their segments.
    """
    num_tokens, num_heads, head_dim = query.shape
    block_size, kv_heads = key_cache.shape[1:3]
    group, num_requests = num_heads // kv_heads, seq_lens.shape[0]
    assert query.stride()[1:] == (head_dim, 1)
    assert tiling.segment % tiling.keys == 0
    num_segments = cdiv(max_seq_len, tiling.segment)
    num_splits = min(num_splits, num_segments)
    num_split = num_decodes if num_splits > 1 else 0  # requests
    queries = tiling.rows // group
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    shape = (num_split, num_heads, num_segments)  # a split request's only query is the token of its own index
    part_best, part_sum, part_acc = (
        torch.empty(size, dtype=torch.float32, device=query.device) for size in (shape, shape, (*shape, head_dim))
    )
    block_d = max(16, next_power_of_2(head_dim))
    with_sinks = sinks is not None
    # The products become scores times log2(e), because 2 to their power is computed.
    cap_scale, scale = (scale / soft_cap, soft_cap) if soft_cap else (1.0, scale)
    scale, windowed, window = scale * math.log2(math.e), window > 0, window or NO_WINDOW

    def launch(first: int, count: int, tiles: int, splits: int, search: bool) -> None:
        """Computes the requests [first, first + count) by `tiles` tiles of queries for each KV head."""
        _attention_kernel[(tiles * kv_heads, splits)](
            query, key_cache, value_cache, block_tables, query_start_loc, seq_lens, out,
            part_best, part_sum, part_acc, sinks,
            scale, cap_scale, window, block_tables.stride(0), query.stride(0), key_cache.stride(0), key_cache.stride(1),
            kv_heads, first, count, num_segments,
            GROUP=group, HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_SIZE=block_size,
            BLOCK_M=tiling.rows, BLOCK_N=tiling.keys, SEGMENT=tiling.segment,
            SEARCH=search, SPLIT=splits > 1, WINDOWED=windowed, CAPPED=soft_cap > 0, SINKS=with_sinks,
            # The interpreter of Triton 3.7.1 computes bf16 tl.dot wrongly, without an error: upcast to float32 there.
            UPCAST=triton.knobs.runtime.interpret,
            num_warps=tiling.warps, num_stages=tiling.stages if search or splits > 1 else tiling.walking_stages,
        )  # fmt: skip

    if num_split:
        launch(0, num_split, num_split, num_splits, search=False)
        _merge_kernel[(num_split, num_heads)](
            part_best, part_sum, part_acc, sinks, query_start_loc, seq_lens, out, scale, window, num_segments,
            HEAD_DIM=head_dim, BLOCK_D=block_d, SEGMENT=tiling.segment, AT_ONCE=MERGED_AT_ONCE, SINKS=with_sinks,
            num_warps=1,
        )  # fmt: skip
    if num_split < num_requests:
        count, search = num_requests - num_split, max_query_len > queries
        # One tile more than the requests need at most, if the first of them begins within a tile.
        tiles = (num_tokens - num_split) // queries + count + (num_split > 0) if search else count
        launch(num_split, count, tiles, 1, search)
    return out
