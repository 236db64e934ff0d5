"""The operations that a model calls: Triton kernels where the tensors lie on a GPU, the plain twins elsewhere."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels import reference


@dataclass(frozen=True)
class AttentionInputs:
    """Where this step's tokens stand. R requests, T tokens."""

    slot_mapping: Tensor  # [T] int64: block * block_size + offset
    block_tables: Tensor  # [R, blocks] int32
    query_start_loc: Tensor  # [R + 1] int32
    seq_lens: Tensor  # [R] int32
    max_query_len: int


class Ops(Protocol):
    """See kernels/reference.py for shapes and meaning."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...
    def norm_rope(self, x: Tensor, weight: Tensor | None, eps: float, cos_sin: Tensor, positions: Tensor) -> Tensor: ...
    def write_kv(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None: ...
    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, inputs: AttentionInputs, scale: float
    ) -> Tensor: ...


class ReferenceOps:
    """The twins, on any device."""

    name = "reference"
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    norm_rope = staticmethod(reference.norm_rope)
    write_kv = staticmethod(reference.write_kv)

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, inputs: AttentionInputs, scale: float
    ) -> Tensor:
        return reference.paged_attention(
            query, key_cache, value_cache, inputs.block_tables, inputs.query_start_loc, inputs.seq_lens, scale
        )


class TritonOps:
    """The kernels; imported here, because a machine without a GPU need not have Triton."""

    name = "triton"

    def __init__(self) -> None:
        from kernels import kv_write, norm_rope, paged_attention

        self.rms_norm = norm_rope.rms_norm
        self.add_rms_norm = norm_rope.add_rms_norm
        self.norm_rope = norm_rope.norm_rope
        self.write_kv = kv_write.write_kv
        self._paged_attention = paged_attention.paged_attention

    def paged_attention(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, inputs: AttentionInputs, scale: float
    ) -> Tensor:
        return self._paged_attention(
            query,
            key_cache,
            value_cache,
            inputs.block_tables,
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.max_query_len,
            scale,
        )


def ops_for(device: torch.device) -> Ops:
    """The fastest implementation for tensors on `device`."""
    return TritonOps() if device.type == "cuda" else ReferenceOps()
