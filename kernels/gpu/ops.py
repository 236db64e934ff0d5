"""Ops on the Triton kernels. Imported only if the model runs on a GPU."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import (
    activation,
    attention,
    attention_tiling,
    bitmask,
    experts,
    library,
    linear_tiling,
    rope,
    route,
    sample,
)
from kernels.gpu import norm as norms
from kernels.gpu import soft_cap as caps
from kernels.gpu.card import H100, Card
from kernels.gpu.matrix import matrix_of
from kernels.interface import AttentionInputs, KvPair, Stack
from kernels.plain_cache import plain_cache
from kernels.program import Experts, Matrix, Mix, Operation, Route
from kernels.stack import EagerStack
from kernels.torch_matrix import TorchMatrix
from kernels.weight_parts import joined


class TritonOps:
    allocate_kv_cache = staticmethod(plain_cache)
    norm = staticmethod(norms.norm)
    add_norm = staticmethod(norms.add_norm)
    rope_and_write = staticmethod(rope.rope_and_write)
    activate = staticmethod(activation.activate)
    apply_bitmask = staticmethod(bitmask.apply_bitmask)
    soft_cap = staticmethod(caps.soft_cap)
    draw = staticmethod(sample.draw)
    draw_scratch_bytes = staticmethod(sample.draw_scratch_bytes)
    mixture_bytes = staticmethod(reference.mixture_bytes)

    def __init__(self, batch_invariant: bool = True, quantization: str | None = None, card: Card = H100) -> None:
        """`quantization`: one of matrix.EIGHT_BITS, only with batch-invariant products. Without batch invariance,
        products are cuBLAS's (TorchMatrix). `card`: that the weights will be on."""
        assert quantization is None or batch_invariant
        self.batch_invariant = batch_invariant
        self._quantization = quantization
        self.name = "triton" if batch_invariant else "triton+torch"
        if quantization is not None:
            self.name += f"+{quantization}"
        if batch_invariant and (used := library.used_by(card)):
            self.name += f"+{used}"

    def matrix(
        self,
        *parts: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        exact: bool = False,
    ) -> Matrix:
        if not self.batch_invariant:
            return TorchMatrix(joined(parts, dtype, device))
        return matrix_of(parts, None if exact else self._quantization, dtype, device)

    def experts(
        self, weights: Sequence[Sequence[Tensor]], dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Experts:
        return experts.experts_of(weights, self._quantization, dtype, device)

    def route(self, logits: Tensor, how: Route) -> tuple[Tensor, Tensor]:
        return route.route(
            logits, how.top_k, how.correction, how.sigmoid, how.renormalised, how.groups, how.kept_groups, how.scale
        )

    def mix(self, x: Tensor, chosen: tuple[Tensor, Tensor], how: Mix, added: Tensor | None) -> Tensor:
        (ids, weights), form = chosen, how.activate
        assert isinstance(how.inner, experts.TritonExperts) and isinstance(how.down, experts.TritonExperts)
        order, top_k = experts.ordered(ids, len(how.inner)), ids.shape[1]
        inner = how.inner.product(x, order, top_k, how.inner_bias, gathered=True)
        activated = self.activate(inner, form.kind, form.gated, form.alpha, form.limit)
        parts = how.down.product(activated, order, top_k, how.down_bias, gathered=False)
        return experts.summed(parts, order, weights, added)

    def paged_attention(
        self,
        query: Tensor,
        cache: KvPair,
        inputs: AttentionInputs,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return attention.paged_attention(
            query, *cache, inputs.block_tables, inputs.query_start_loc, inputs.seq_lens, inputs.num_decodes,
            inputs.max_query_len, inputs.max_seq_len, scale, window, soft_cap, sinks,
        )  # fmt: skip

    def stack(self, operations: Sequence[Operation]) -> Stack:
        return EagerStack(self, operations)

    def kernel_nanoseconds(self) -> int:
        return 0

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """Returns an upper bound in bytes: the larger of attention's workspace and a split-K product's partial sums."""
        split = attention_tiling.scratch_bytes(tokens, heads, kv_heads, head_dim, length)
        return max(split, linear_tiling.workspace_bytes(tokens))
