"""The Triton kernels as the operations that a model calls. Imported only where there is a GPU to run them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import kv_write, linear, norm_rope, paged_attention, reference, sampling
from kernels.interface import AttentionInputs, KvPair, Layer, Matrix, Stack
from kernels.stack import OneByOne
from kernels.torch_ops import POINTWISE_BYTES, TorchMatrix, joined, plain_cache


class TritonOps:
    empty_cache = staticmethod(plain_cache)
    rms_norm = staticmethod(norm_rope.rms_norm)
    add_rms_norm = staticmethod(norm_rope.add_rms_norm)
    silu_mul = staticmethod(reference.silu_mul)  # element by element, so the same for every batch
    draw = staticmethod(sampling.draw)
    draw_scratch_bytes = staticmethod(sampling.draw_scratch_bytes)

    def __init__(self, batch_invariant: bool = True) -> None:
        self.batch_invariant = batch_invariant
        self.name = "triton" if batch_invariant else "triton+torch"

    def matrix(self, *parts: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Matrix:
        weight = joined(parts, dtype, device)
        return linear.TritonMatrix(weight) if self.batch_invariant else TorchMatrix(weight)

    def rope_and_write(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        cos_sin: Tensor,
        positions: Tensor,
        cache: KvPair,
        slot_mapping: Tensor,
    ) -> Tensor:
        query, key, value = reference.split_heads(qkv, cache)
        query_norm, key_norm = norms or (None, None)
        key = norm_rope.norm_rope(key, key_norm, eps, cos_sin, positions)
        kv_write.write_kv(key, value, *cache, slot_mapping)
        return norm_rope.norm_rope(query, query_norm, eps, cos_sin, positions)

    def paged_attention(self, query: Tensor, cache: KvPair, inputs: AttentionInputs, scale: float) -> Tensor:
        return paged_attention.paged_attention(
            query,
            *cache,
            inputs.block_tables,
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.max_query_len,
            scale,
        )

    def stack(self, layers: Sequence[Layer], eps: float, scale: float, cos_sin: Tensor) -> Stack:
        return OneByOne(self, layers, eps, scale, cos_sin)

    def kernel_nanoseconds(self) -> int:
        return 0

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """Copies in float32, in silu_mul."""
        return tokens * width * POINTWISE_BYTES
