"""The transformer decoder: pre-norm layers of grouped-query attention over a paged KV cache and a gated MLP.

Owns the weights in the layout of its kernels. It does not know requests: its inputs are tokens, positions and attention
metadata.
"""

import torch
from torch import Tensor

from kernels.interface import AttentionInputs, KvPair, Layer, Matrix, Ops
from kernels.torch_matrix import TorchMatrix
from kernels.weight_parts import joined
from services.worker.models.config import DecoderConfig
from services.worker.models.parameters import EMBEDDING, FINAL_NORM, HEAD, layer_name
from services.worker.weights import Weights

KvCache = list[KvPair]  # per layer


class Decoder:
    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, weights: Weights, ops: Ops
    ) -> None:
        """Takes the tensors (parameter_shapes) out of `weights`, one at a time, and copies them to `device`.

        They get `dtype`; matrices, but not an untied embedding, are quantised if `ops` does that.
        """
        self.config = config
        self.dtype = dtype
        self.device = device
        self.ops = ops
        if config.tie_word_embeddings:
            self._embedding = self._head = self._matrix(weights, EMBEDDING)
        else:
            # An untied embedding is only looked up, never multiplied: it is not packed.
            self._embedding = TorchMatrix(joined([weights.take(EMBEDDING)], dtype, device))
            self._head = self._matrix(weights, HEAD)
        layers = [self._layer(weights, index) for index in range(config.num_layers)]
        self._stack = ops.stack(layers, config.rms_norm_eps, config.head_dim**-0.5, rope_table(config, device))
        self._final_norm = self._vector(weights, FINAL_NORM)

    def forward(
        self, input_ids: Tensor, positions: Tensor, caches: KvCache, inputs: AttentionInputs, logits_indices: Tensor
    ) -> Tensor:
        """Returns hidden states [S, hidden], after the final norm, of the tokens `logits_indices` [S] int64, ascending.

        input_ids [T] int64, positions [T] int64. Writes the KV of all T tokens into the caches.
        """
        hidden, residual = self._stack(self._embedding.rows(input_ids), positions, caches, inputs, logits_indices)
        normed, _ = self.ops.add_rms_norm(hidden, residual, self._final_norm, self.config.rms_norm_eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [S, vocab] float32 of hidden states [S, hidden] that `forward` returned."""
        return self._head.product(hidden, torch.float32)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Returns a new paged KV cache of all layers. Raises OSError or torch.OutOfMemoryError without the memory.

        Freed blocks need no clearing: attention stops at seq_len.
        """
        config = self.config
        return [
            self.ops.allocate_kv_cache(
                num_blocks, block_size, config.num_kv_heads, config.head_dim, self.dtype, self.device
            )
            for _ in range(config.num_layers)
        ]  # fmt: skip

    def _layer(self, weights: Weights, index: int) -> Layer:
        def matrix(*parts: str) -> Matrix:
            return self._matrix(weights, *(layer_name(index, part) for part in parts))

        def vector(part: str) -> Tensor:
            return self._vector(weights, layer_name(index, part))

        return Layer(
            input_norm=vector("input_layernorm"),
            qkv=matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            head_norms=(vector("self_attn.q_norm"), vector("self_attn.k_norm")) if self.config.qk_norm else None,
            out=matrix("self_attn.o_proj"),
            post_norm=vector("post_attention_layernorm"),
            gate_up=matrix("mlp.gate_proj", "mlp.up_proj"),
            down=matrix("mlp.down_proj"),
        )

    def _matrix(self, weights: Weights, *names: str) -> Matrix:
        return self.ops.matrix(*map(weights.take, names), dtype=self.dtype, device=self.device)

    def _vector(self, weights: Weights, name: str) -> Tensor:
        return weights.take(name).to(self.device, self.dtype, copy=True)


def rope_table(config: DecoderConfig, device: torch.device) -> Tensor:
    """Returns [max positions, head_dim] float32: cosines, then sines, of each position's angles (arXiv 2104.09864)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
