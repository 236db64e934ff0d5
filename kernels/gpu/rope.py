"""Triton: QK norm, rotary embedding and the write to the paged KV cache in one launch. Twin: reference.rope_and_write.

One program computes some heads of one token: queries and keys are normalised and rotated, values are copied. A head is
two halves, whose pairs are rotated, and a rest, which is not. Batch invariance: the tile's shape follows from the head
size, the rotated elements and the number of heads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rounding import cdiv, next_power_of_2

TILE = 1024  # elements of heads in one program


@triton.jit
def _of_head(query_ptr, key_ptr, cols, inside, is_query, OWN: tl.constexpr):
    """Returns float32 numbers for each head and column: [heads, columns], those of queries or of keys. Without OWN both
    are the same, [1, columns]."""
    found = tl.load(query_ptr + cols, mask=inside, other=0.0)[None, :]
    if OWN:
        found = tl.where(is_query, found, tl.load(key_ptr + cols, mask=inside, other=0.0)[None, :])
    return found


@triton.jit
def _store(
    part, cols, inside, head, token, slot, query_ptr, keys_ptr, values_ptr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Stores `part` [heads, columns] of a token's heads as queries, keys or values. Slot -1: only queries."""
    out, col = part.to(query_ptr.dtype.element_ty), cols[None, :]
    here = (head < HEADS + 2 * KV_HEADS) & inside[None, :]
    tl.store(query_ptr + (token * HEADS + head) * SIZE + col, out, mask=here & (head < HEADS))
    place = (slot * KV_HEADS + (head - HEADS) % KV_HEADS) * SIZE + col
    cached = here & (head >= HEADS) & (slot >= 0)
    tl.store(keys_ptr + place, out, mask=cached & (head < HEADS + KV_HEADS))
    tl.store(values_ptr + place, out, mask=cached & (head >= HEADS + KV_HEADS))


@triton.jit
def _rope_and_write_kernel(
    qkv_ptr, query_norm_ptr, key_norm_ptr, query_table_ptr, key_table_ptr, positions_ptr, slots_ptr, query_ptr,
    keys_ptr, values_ptr, token_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    TURN: tl.constexpr, OWN_TABLES: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    real = head < HEADS + 2 * KV_HEADS
    source = qkv_ptr + token * token_stride + head * SIZE
    cols = tl.arange(0, BLOCK)
    in_half = cols < HALF
    first = tl.load(source + cols[None, :], mask=real & in_half[None, :], other=0.0).to(tl.float32)
    second = tl.load(source + HALF + cols[None, :], mask=real & in_half[None, :], other=0.0).to(tl.float32)
    if BLOCK_REST > 0:
        rest_cols = 2 * HALF + tl.arange(0, BLOCK_REST)
        in_rest = rest_cols < SIZE
        rest = tl.load(source + rest_cols[None, :], mask=real & in_rest[None, :], other=0.0).to(tl.float32)

    turned, across = first, second
    if NORM:
        squares = tl.sum(first * first, axis=1, keep_dims=True) + tl.sum(second * second, axis=1, keep_dims=True)
        if BLOCK_REST > 0:
            squares += tl.sum(rest * rest, axis=1, keep_dims=True)
        scale = tl.rsqrt(squares / SIZE + eps)
        turned = first * scale * _of_head(query_norm_ptr, key_norm_ptr, cols, in_half, is_query, True)
        across = second * scale * _of_head(query_norm_ptr, key_norm_ptr, HALF + cols, in_half, is_query, True)
        if BLOCK_REST > 0:
            normed = rest * scale * _of_head(query_norm_ptr, key_norm_ptr, rest_cols, in_rest, is_query, True)
            rest = tl.where(is_value, rest, normed)
    if TURN:
        angles = tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF) + cols
        cos = _of_head(query_table_ptr, key_table_ptr, angles, in_half, is_query, OWN_TABLES)
        sin = _of_head(query_table_ptr, key_table_ptr, angles + HALF, in_half, is_query, OWN_TABLES)
        turned, across = turned * cos - across * sin, across * cos + turned * sin
    if NORM or TURN:
        first = tl.where(is_value, first, turned)
        second = tl.where(is_value, second, across)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    _store(first, cols, in_half, head, token, slot, query_ptr, keys_ptr, values_ptr, HEADS, KV_HEADS, SIZE)
    _store(second, HALF + cols, in_half, head, token, slot, query_ptr, keys_ptr, values_ptr, HEADS, KV_HEADS, SIZE)
    if BLOCK_REST > 0:
        _store(rest, rest_cols, in_rest, head, token, slot, query_ptr, keys_ptr, values_ptr, HEADS, KV_HEADS, SIZE)


def rope_and_write(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor] | None,
    positions: Tensor,
    cache: tuple[Tensor, Tensor],
    slot_mapping: Tensor,
) -> Tensor:
    """Returns reference.rope_and_write: queries [T, H, D]. Rows of qkv may be strided; the caches are contiguous."""
    keys, values = cache
    kv_heads, head_dim = keys.shape[2:]
    tokens, heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads
    assert qkv.stride(1) == 1 and qkv.dtype == keys.dtype == values.dtype
    assert keys.is_contiguous() and values.is_contiguous()
    query_norm, key_norm = norms or (qkv, qkv)
    query_table, key_table = tables or (qkv, qkv)
    if norms is not None:
        assert query_norm.shape == key_norm.shape == (head_dim,)
        assert query_norm.dtype == key_norm.dtype == torch.float32
    half = head_dim // 2  # nothing turned: as large a half as a full rotation's
    if tables is not None:
        half = query_table.shape[1] // 2
        assert query_table.shape[1] == key_table.shape[1] == 2 * half <= head_dim
        assert query_table.dtype == key_table.dtype == torch.float32
        assert query_table.is_contiguous() and key_table.is_contiguous()
    query = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    block = next_power_of_2(half)
    block_rest = next_power_of_2(head_dim - 2 * half) if head_dim > 2 * half else 0
    most = max(1, TILE // next_power_of_2(2 * block + block_rest))
    block_heads = min(most, next_power_of_2(heads + 2 * kv_heads))
    _rope_and_write_kernel[tokens, cdiv(heads + 2 * kv_heads, block_heads)](
        qkv, query_norm, key_norm, query_table, key_table, positions, slot_mapping, query, keys, values,
        qkv.stride(0), eps,
        HEADS=heads, KV_HEADS=kv_heads, SIZE=head_dim, HALF=half, NORM=norms is not None, TURN=tables is not None,
        OWN_TABLES=query_table is not key_table, BLOCK_HEADS=block_heads, BLOCK=block, BLOCK_REST=block_rest,
    )  # fmt: skip
    return query
