"""The paged KV cache of one layer as two plain tensors, for torch and Triton."""

import torch

from kernels import pages
from kernels.interface import KvPair


def plain_cache(
    num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KvPair:
    """Returns zeroed keys and values, each [blocks, block_size, kv_heads, head_dim]."""
    size = (num_blocks, block_size, kv_heads, head_dim)
    if device.type == "cpu":
        return pages.zeros(size, dtype), pages.zeros(size, dtype)
    return torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device)
