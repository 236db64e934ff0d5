"""Triton: QK norm, rotary embedding and the write to the paged KV cache in one launch. Twin: reference.rope_and_write.

One program computes some heads of one token: queries and keys are normalised and rotated, values are copied. Batch
invariance: the tile's shape follows from the head size and the number of heads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_PAIRS = 512  # (first half, second half) pairs that one program rotates


@triton.jit
def _rope_and_write_kernel(
    qkv_ptr, query_norm_ptr, key_norm_ptr, cos_sin_ptr, positions_ptr, slots_ptr, query_ptr, keys_ptr, values_ptr,
    token_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    cols = tl.arange(0, BLOCK)
    col, col_inside = cols[None, :], cols < HALF
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    inside = (head < HEADS + 2 * KV_HEADS) & col_inside[None, :]
    source = qkv_ptr + token * token_stride + head * (2 * HALF) + col
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)

    turned, across = first, second
    if NORM:
        squares = tl.sum(first * first, axis=1, keep_dims=True) + tl.sum(second * second, axis=1, keep_dims=True)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)
        query_first = tl.load(query_norm_ptr + cols, mask=col_inside, other=0.0).to(tl.float32)[None, :]
        query_second = tl.load(query_norm_ptr + HALF + cols, mask=col_inside, other=0.0).to(tl.float32)[None, :]
        key_first = tl.load(key_norm_ptr + cols, mask=col_inside, other=0.0).to(tl.float32)[None, :]
        key_second = tl.load(key_norm_ptr + HALF + cols, mask=col_inside, other=0.0).to(tl.float32)[None, :]
        turned = first * scale * tl.where(is_query, query_first, key_first)
        across = second * scale * tl.where(is_query, query_second, key_second)
    angles = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * HALF) + cols
    cos = tl.load(angles, mask=col_inside, other=0.0)[None, :]
    sin = tl.load(angles + HALF, mask=col_inside, other=0.0)[None, :]
    out_first = tl.where(is_value, first, turned * cos - across * sin).to(query_ptr.dtype.element_ty)
    out_second = tl.where(is_value, second, across * cos + turned * sin).to(query_ptr.dtype.element_ty)

    target = query_ptr + (token * HEADS + head) * (2 * HALF) + col
    tl.store(target, out_first, mask=inside & is_query)
    tl.store(target + HALF, out_second, mask=inside & is_query)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    place = (slot * KV_HEADS + (head - HEADS) % KV_HEADS) * (2 * HALF) + col
    cached = inside & (head >= HEADS) & (slot >= 0)
    tl.store(keys_ptr + place, out_first, mask=cached & (head < HEADS + KV_HEADS))
    tl.store(keys_ptr + place + HALF, out_second, mask=cached & (head < HEADS + KV_HEADS))
    tl.store(values_ptr + place, out_first, mask=cached & is_value)
    tl.store(values_ptr + place + HALF, out_second, mask=cached & is_value)


def rope_and_write(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    cache: tuple[Tensor, Tensor],
    slot_mapping: Tensor,
) -> Tensor:
    """Returns reference.rope_and_write: queries [T, H, D]. Rows of qkv may be strided; the caches are contiguous."""
    keys, values = cache
    kv_heads, head_dim = keys.shape[2:]
    tokens, heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads
    assert qkv.stride(1) == 1 and qkv.dtype == keys.dtype == values.dtype
    assert keys.is_contiguous() and values.is_contiguous() and cos_sin.is_contiguous()
    query = torch.empty(tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    query_norm, key_norm = norms or (qkv, qkv)
    block = triton.next_power_of_2(head_dim // 2)
    block_heads = min(max(1, TILE_PAIRS // block), triton.next_power_of_2(heads + 2 * kv_heads))
    _rope_and_write_kernel[tokens, triton.cdiv(heads + 2 * kv_heads, block_heads)](
        qkv, query_norm, key_norm, cos_sin, positions, slot_mapping, query, keys, values, qkv.stride(0), eps,
        HEADS=heads, KV_HEADS=kv_heads, HALF=head_dim // 2, NORM=norms is not None,
        BLOCK_HEADS=block_heads, BLOCK=block,
    )  # fmt: skip
    return query
