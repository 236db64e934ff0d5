"""Runs all decoder layers in one call of the compiled library. Twin: kernels/stack.py."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kernels.cpu.library import Library
from kernels.cpu.matrix import TYPES, CpuMatrix
from kernels.interface import AttentionInputs, KvPair, Layer

_MATRIX = [("n", "<i8"), ("k", "<i8"), ("packed", "<i8"), ("scales", "<i8")]
# The memory layout of stack::Layer in native/stack.h.
_LAYER = np.dtype(
    [
        ("input_norm", "<i8"),
        ("qkv", _MATRIX),
        ("query_norm", "<i8"),
        ("key_norm", "<i8"),
        ("out", _MATRIX),
        ("post_norm", "<i8"),
        ("gate_up", _MATRIX),
        ("down", _MATRIX),
        ("cache", "<i8"),
    ]
)


class CompiledStack:
    """A Stack for layers with only CpuMatrix weights, without padding along K (`can_run`)."""

    def __init__(self, library: Library, layers: Sequence[Layer], eps: float, scale: float, cos_sin: Tensor) -> None:
        self._library = library
        self.layers: Sequence[Layer] = list(layers)  # keeps the tensors alive: _table has their addresses
        self._eps = eps
        self._scale = scale
        self._cos_sin = cos_sin
        self._table = np.zeros(len(layers), dtype=_LAYER)
        for place, layer in zip(self._table, layers, strict=True):
            for name in ("input_norm", "post_norm"):
                place[name] = getattr(layer, name).data_ptr()
            for name in ("qkv", "out", "gate_up", "down"):
                place[name] = getattr(layer, name).operand()
            if layer.head_norms is not None:
                place["query_norm"], place["key_norm"] = (norm.data_ptr() for norm in layer.head_norms)

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: AttentionInputs,
        logits_indices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        self._table["cache"] = [keys.data_ptr() for keys, _ in caches]
        keys, values = caches[0]
        kv_heads, block_size, head_dim = values.shape[1], keys.shape[3], values.shape[3]
        tables = inputs.block_tables
        assert hidden.is_contiguous() and hidden.dtype == keys.dtype and tables.stride(1) == 1
        residual = hidden.clone()
        self._library.stack(
            TYPES[hidden.dtype], self._table.ctypes.data, len(self._table), hidden.shape[0],
            int(self._table[0]["out"]["k"]) // head_dim, kv_heads, head_dim, block_size, self._eps, self._scale,
            self._cos_sin.data_ptr(), positions.data_ptr(), inputs.slot_mapping.data_ptr(), tables.data_ptr(),
            tables.stride(0), inputs.query_start_loc.data_ptr(), inputs.seq_lens.data_ptr(), len(inputs.seq_lens),
            logits_indices.data_ptr(), len(logits_indices), hidden.data_ptr(), residual.data_ptr(),
        )  # fmt: skip
        return hidden[: len(logits_indices)], residual[: len(logits_indices)]


def can_run(layers: Sequence[Layer]) -> bool:
    """Returns whether CompiledStack can run these layers."""
    matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    return all(isinstance(matrix, CpuMatrix) and not matrix.padding for matrix in matrices)
