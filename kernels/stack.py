"""Runs the layers of a decoder eagerly, one operation after the other, on any Ops."""

from collections.abc import Sequence

from torch import Tensor

from kernels.interface import AttentionInputs, KvPair, Layer, Ops


class EagerStack:
    """A Stack in eager mode. After the last layer's attention, only the tokens `logits_indices` are computed."""

    def __init__(self, ops: Ops, layers: Sequence[Layer], eps: float, scale: float, cos_sin: Tensor) -> None:
        self._ops = ops
        self.layers = layers
        self._eps = eps
        self._scale = scale
        self._cos_sin = cos_sin

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: AttentionInputs,
        logits_indices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ops, eps = self._ops, self._eps
        residual, normed = hidden, ops.rms_norm(hidden, self.layers[0].input_norm, eps)
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            if index > 0:
                normed, residual = ops.add_rms_norm(hidden, residual, layer.input_norm, eps)
            qkv = layer.qkv.product(normed)
            query = ops.rope_and_write(qkv, layer.head_norms, eps, self._cos_sin, positions, cache, inputs.slot_mapping)
            attention = ops.paged_attention(query, cache, inputs, self._scale).flatten(1)
            if index + 1 == len(self.layers):
                attention, residual = attention[logits_indices], residual[logits_indices]
            hidden = layer.out.product(attention)
            normed, residual = ops.add_rms_norm(hidden, residual, layer.post_norm, eps)
            hidden = layer.down.product(ops.silu_mul(layer.gate_up.product(normed)))
        return hidden, residual
