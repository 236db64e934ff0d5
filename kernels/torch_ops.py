"""Products by torch, and the operations made of the plain twins: the path of `--no-batch-invariant`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference, sampling
from kernels.interface import AttentionInputs, KvPair


class TorchMatrix:
    """oneDNN or cuBLAS: the bits of a row may depend on how many rows there are."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return F.linear(x, self._weight).to(dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._weight)


def plain_cache(
    num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KvPair:
    """Both [blocks, block_size, kv_heads, head_dim]."""
    size = (num_blocks, block_size, kv_heads, head_dim)
    return torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device)


class TorchOps:
    name = "torch"
    batch_invariant = False
    matrix = staticmethod(TorchMatrix)
    empty_cache = staticmethod(plain_cache)
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    rope_and_write = staticmethod(reference.rope_and_write)
    silu_mul = staticmethod(reference.silu_mul)
    draw = staticmethod(sampling.draw)

    def paged_attention(self, query: Tensor, cache: KvPair, inputs: AttentionInputs, scale: float) -> Tensor:
        return reference.paged_attention(
            query, *cache, inputs.block_tables, inputs.query_start_loc, inputs.seq_lens, scale
        )

    def kernel_nanoseconds(self) -> int:
        return 0
