"""Triton: causal attention over the paged cache, prefill chunks and single tokens in one launch. Twin: reference.

One program computes a tile of queries of one request for one KV head; the query heads that share the KV head are rows
of the same tile. The KV is walked in tiles at fixed absolute positions with an online softmax (arXiv 2205.14135), so
that a token's result does not depend on how its prompt was cut into chunks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ROWS = 16  # the smallest that tl.dot takes on every GPU
TILE_KEYS = 64


@triton.jit
def _paged_attention_kernel(
    query_ptr, key_cache_ptr, value_cache_ptr, block_tables_ptr, query_start_loc_ptr, seq_lens_ptr, out_ptr,
    scale, table_stride, query_stride, num_kv_heads,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    request, tile, kv_head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    start = tl.load(query_start_loc_ptr + request)
    num_queries = tl.load(query_start_loc_ptr + request + 1) - start
    if tile * QUERIES >= num_queries:
        return
    seq_len = tl.load(seq_lens_ptr + request)
    context_len = seq_len - num_queries

    rows = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    query_index = tile * QUERIES + rows // GROUP
    row_inside = (rows < QUERIES * GROUP) & (query_index < num_queries)
    dim_inside = dims < HEAD_DIM
    head = kv_head * GROUP + rows % GROUP
    token = (start + query_index).to(tl.int64)
    mask_q = row_inside[:, None] & dim_inside[None, :]
    query = tl.load(
        query_ptr + token[:, None] * query_stride + head[:, None] * HEAD_DIM + dims[None, :], mask=mask_q, other=0.0
    )
    if UPCAST:
        query = query.to(tl.float32)
    position = context_len + query_index

    best = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    end = tl.minimum(seq_len, context_len + (tile + 1) * QUERIES)
    for first_key in range(0, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        key_inside = keys < end
        block = tl.load(block_tables_ptr + request * table_stride + keys // BLOCK_SIZE, mask=key_inside, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + keys % BLOCK_SIZE
        place = (slot[:, None] * num_kv_heads + kv_head) * HEAD_DIM + dims[None, :]
        mask_kv = key_inside[:, None] & dim_inside[None, :]
        key = tl.load(key_cache_ptr + place, mask=mask_kv, other=0.0)
        value = tl.load(value_cache_ptr + place, mask=mask_kv, other=0.0)
        if UPCAST:
            key = key.to(tl.float32)
            value = value.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        allowed = row_inside[:, None] & key_inside[None, :] & (keys[None, :] <= position[:, None])
        scores = tl.where(allowed, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A row without any key yet keeps -inf; subtracting it from itself would give NaN.
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - shift[:, None])
        rescale = tl.exp(best - shift)
        weight_sum = weight_sum * rescale + tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        acc = acc * rescale[:, None] + mixed
        best = new_best
    out = acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    num_heads = num_kv_heads * GROUP
    place_out = (token[:, None] * num_heads + head[:, None]) * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + place_out, out.to(out_ptr.dtype.element_ty), mask=mask_q)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    scale: float,
) -> Tensor:
    """As reference.paged_attention; `max_query_len` is that of the longest chunk, known on the host."""
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    assert query.stride()[1:] == (head_dim, 1)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    block_m = max(TILE_ROWS, triton.next_power_of_2(group))
    grid = (seq_lens.shape[0], triton.cdiv(max_query_len, block_m // group), num_kv_heads)
    _paged_attention_kernel[grid](
        query, key_cache, value_cache, block_tables, query_start_loc, seq_lens, out,
        scale, block_tables.stride(0), query.stride(0), num_kv_heads,
        GROUP=group, HEAD_DIM=head_dim, BLOCK_D=max(16, triton.next_power_of_2(head_dim)), BLOCK_SIZE=block_size,
        BLOCK_M=block_m, BLOCK_N=TILE_KEYS,
        # Triton's interpreter computes bf16 tl.dot wrongly without a word (3.7.1): float32 there.
        UPCAST=triton.knobs.runtime.interpret,
    )  # fmt: skip
    return out
