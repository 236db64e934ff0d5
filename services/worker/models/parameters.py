"""A decoder's weights as they are loaded: plain tensors, by their names in the checkpoint.

They live until the decoder has made its matrices of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.models.config import DecoderConfig


@dataclass
class LayerParameters:
    """Projections that read the same input are one matrix: qkv and gate_up."""

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    head_norms: tuple[Tensor, Tensor] | None  # of queries and of keys, [head_dim] each
    out: Tensor  # [hidden, heads * head_dim]
    post_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


class Parameters:
    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = self._empty(config.vocab_size, config.hidden_size)
        self.head = None if config.tie_word_embeddings else self._empty(config.vocab_size, config.hidden_size)
        self.final_norm = self._empty(config.hidden_size)
        self.layers = [self._empty_layer() for _ in range(config.num_layers)]

    def named(self) -> dict[str, Tensor]:
        """Name in the checkpoint -> the memory that it fills."""
        named = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.final_norm}
        if self.head is not None:
            named["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            named |= {f"model.layers.{index}.{name}.weight": part for name, part in self._parts(layer).items()}
        return named

    def _parts(self, layer: LayerParameters) -> dict[str, Tensor]:
        config = self.config
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = {
            "input_layernorm": layer.input_norm,
            "self_attn.q_proj": layer.qkv[:query],
            "self_attn.k_proj": layer.qkv[query : query + key],
            "self_attn.v_proj": layer.qkv[query + key :],
            "self_attn.o_proj": layer.out,
            "post_attention_layernorm": layer.post_norm,
            "mlp.gate_proj": layer.gate_up[: config.intermediate_size],
            "mlp.up_proj": layer.gate_up[config.intermediate_size :],
            "mlp.down_proj": layer.down,
        }
        if layer.head_norms is not None:
            parts["self_attn.q_norm"], parts["self_attn.k_norm"] = layer.head_norms
        return parts

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _empty_layer(self) -> LayerParameters:
        config = self.config
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        return LayerParameters(
            input_norm=self._empty(hidden),
            qkv=self._empty((config.num_heads + 2 * config.num_kv_heads) * head_dim, hidden),
            head_norms=(self._empty(head_dim), self._empty(head_dim)) if config.qk_norm else None,
            out=self._empty(hidden, config.num_heads * head_dim),
            post_norm=self._empty(hidden),
            gate_up=self._empty(2 * inner, hidden),
            down=self._empty(hidden, inner),
        )
