"""The transformer decoder: pre-norm blocks of grouped-query attention over a paged cache and a gated MLP.

Owns the weights in the form that its kernels want. Knows nothing of requests: it gets T tokens, their positions, and
where their KV belongs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.interface import AttentionInputs, KvPair, Matrix, Ops
from kernels.torch_ops import TorchMatrix
from services.worker.models.config import DecoderConfig
from services.worker.models.parameters import LayerParameters, Parameters

KvCache = list[KvPair]  # per layer


@dataclass(frozen=True)
class Layer:
    """As in LayerParameters."""

    input_norm: Tensor
    qkv: Matrix
    head_norms: tuple[Tensor, Tensor] | None
    out: Matrix
    post_norm: Tensor
    gate_up: Matrix
    down: Matrix


class Decoder:
    def __init__(self, parameters: Parameters, ops: Ops) -> None:
        """Takes the parameters over, layer by layer, so that no more than one layer is held twice."""
        self.config = parameters.config
        self.dtype = parameters.dtype
        self.device = parameters.device
        self.ops = ops
        self._head = ops.matrix(parameters.embedding if parameters.head is None else parameters.head)
        # Of an embedding of its own only rows are taken: it stays as it is.
        self._embedding = self._head if parameters.head is None else TorchMatrix(parameters.embedding)
        self._final_norm = parameters.final_norm
        self._layers: list[Layer] = []
        while parameters.layers:
            self._layers.append(self._layer(parameters.layers.pop(0)))
        self._cos_sin = rope_table(self.config, self.device)

    def forward(self, input_ids: Tensor, positions: Tensor, cache: KvCache, inputs: AttentionInputs) -> Tensor:
        """Hidden states [T, hidden] of input_ids [T] at positions [T]; writes their KV into the cache on the way."""
        ops, eps = self.ops, self.config.rms_norm_eps
        hidden = residual = self._embedding.rows(input_ids)
        normed = ops.rms_norm(hidden, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            if index > 0:
                normed, residual = ops.add_rms_norm(hidden, residual, layer.input_norm, eps)
            qkv = layer.qkv.product(normed)
            query = ops.rope_and_write(
                qkv, layer.head_norms, eps, self._cos_sin, positions, cache[index], inputs.slot_mapping
            )
            mixed = ops.paged_attention(query, cache[index], inputs, self.config.head_dim**-0.5)
            hidden = layer.out.product(mixed.flatten(1))
            normed, residual = ops.add_rms_norm(hidden, residual, layer.post_norm, eps)
            hidden = layer.down.product(ops.silu_mul(layer.gate_up.product(normed)))
        return ops.add_rms_norm(hidden, residual, self._final_norm, eps)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab] float32."""
        return self._head.product(hidden, torch.float32)

    def empty_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """What a block held before is never read, for attention stops at a request's length."""
        config = self.config
        return [
            self.ops.empty_cache(
                num_blocks, block_size, config.num_kv_heads, config.head_dim, self.dtype, self.device
            )
            for _ in range(config.num_layers)
        ]  # fmt: skip

    def _layer(self, layer: LayerParameters) -> Layer:
        matrix = self.ops.matrix
        return Layer(
            input_norm=layer.input_norm,
            qkv=matrix(layer.qkv),
            head_norms=layer.head_norms,
            out=matrix(layer.out),
            post_norm=layer.post_norm,
            gate_up=matrix(layer.gate_up),
            down=matrix(layer.down),
        )


def rope_table(config: DecoderConfig, device: torch.device) -> Tensor:
    """[max positions, head_dim] float32: the cosines, then the sines, of each position's angles."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
