"""Triton: writes the keys and values of a step's tokens into the paged cache. Twin: reference.write_kv."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write_kv_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_ptr, size, key_stride, value_stride, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < size
    slot = tl.load(slot_ptr + token)
    key = tl.load(key_ptr + token * key_stride + cols, mask=inside)
    value = tl.load(value_ptr + token * value_stride + cols, mask=inside)
    tl.store(key_cache_ptr + slot * size + cols, key, mask=inside)
    tl.store(value_cache_ptr + slot * size + cols, value, mask=inside)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """As reference.write_kv; the heads of one token lie together, tokens may be strided, caches are contiguous."""
    num_tokens, num_kv_heads, head_dim = key.shape
    size = num_kv_heads * head_dim
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1)
    block = min(triton.next_power_of_2(size), 1024)
    _write_kv_kernel[(num_tokens, triton.cdiv(size, block))](
        key, value, key_cache, value_cache, slot_mapping, size, key.stride(0), value.stride(0), BLOCK=block
    )
