"""Ops for `--no-batch-invariant` on a CPU: torch's matrix products, and the twins for all other operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import reference, sampling
from kernels.interface import AttentionInputs, KvPair, Stack
from kernels.plain_cache import plain_cache
from kernels.program import Mix, Operation, Route
from kernels.stack import EagerStack
from kernels.torch_matrix import TorchExperts, TorchMatrix
from kernels.weight_parts import joined

SCORES = 2**24  # attention scores computed at once
SCORE_BYTES = 12  # two float32 copies and the masks
POINTWISE_BYTES = 20  # per element: five float32 copies in the reference's pointwise operations


class TorchOps:
    name = "torch"
    batch_invariant = False
    allocate_kv_cache = staticmethod(plain_cache)
    norm = staticmethod(reference.norm)
    add_norm = staticmethod(reference.add_norm)
    rope_and_write = staticmethod(reference.rope_and_write)
    activate = staticmethod(reference.activate)
    apply_bitmask = staticmethod(reference.apply_bitmask)
    soft_cap = staticmethod(reference.soft_cap)
    draw = staticmethod(sampling.draw)
    draw_scratch_bytes = staticmethod(sampling.draw_scratch_bytes)
    mixture_bytes = staticmethod(reference.mixture_bytes)

    def matrix(
        self,
        *parts: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        exact: bool = False,
    ) -> TorchMatrix:
        return TorchMatrix(joined(parts, dtype, device))

    def experts(
        self, weights: Sequence[Sequence[Tensor]], dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> TorchExperts:
        return TorchExperts([self.matrix(*parts, dtype=dtype, device=device) for parts in weights])

    def route(self, logits: Tensor, how: Route) -> tuple[Tensor, Tensor]:
        return reference.route(
            logits, how.top_k, how.correction, how.sigmoid, how.renormalised, how.groups, how.kept_groups, how.scale
        )

    def mix(self, x: Tensor, chosen: tuple[Tensor, Tensor], how: Mix, added: Tensor | None) -> Tensor:
        """Returns reference.mix."""
        assert isinstance(how.inner, TorchExperts) and isinstance(how.down, TorchExperts)
        form = how.activate
        return reference.mix(
            x,
            *chosen,
            how.inner.products(how.inner_bias),
            lambda inner: self.activate(inner, form.kind, form.gated, form.alpha, form.limit),
            how.down.products(how.down_bias),
            added,
        )

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
        """Returns reference.paged_attention. Computes chunks of a request's queries, so that at most SCORES scores (or
        one query's) are in memory. No request may have length 0."""
        out = torch.empty_like(query)
        starts, lens = inputs.query_start_loc.tolist(), inputs.seq_lens.tolist()
        for row, length in enumerate(lens):
            end = starts[row + 1]
            most = max(1, SCORES // (query.shape[1] * length))
            for first in range(starts[row], end, most):
                last = min(end, first + most)
                span, seen = torch.tensor([0, last - first]), torch.tensor([length - (end - last)])
                table = inputs.block_tables[row : row + 1]
                part = query[first:last]
                out[first:last] = reference.paged_attention(
                    part, *cache, table, span, seen, scale, window, soft_cap, sinks
                )
        return out

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """Returns in bytes the larger of a pointwise operation's copies and attention's scores, keys and values."""
        scores = min(max(SCORES, heads * length), heads * length * tokens)
        attention = scores * SCORE_BYTES + length * kv_heads * head_dim * (2 * dtype.itemsize + 16)
        return max(tokens * width * POINTWISE_BYTES, attention)

    def stack(self, operations: Sequence[Operation]) -> Stack:
        return EagerStack(self, operations)

    def kernel_nanoseconds(self) -> int:
        return 0
