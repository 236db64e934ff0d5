"""The transformer decoder: pre-norm blocks of grouped-query attention over a paged cache and a gated MLP.

Owns the weights. Knows nothing of requests: it gets T tokens, their positions, and where their KV belongs.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.ops import AttentionInputs, Ops, ops_for
from services.worker.models.config import DecoderConfig

KvCache = list[tuple[Tensor, Tensor]]  # per layer: keys and values, each [blocks, block_size, kv_heads, head_dim]


@dataclass
class Layer:
    """Projections that read the same input are one matrix: qkv and gate_up."""

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None
    out: Tensor  # [hidden, heads * head_dim]
    post_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


class Decoder:
    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._ops: Ops = ops_for(device)
        self._embedding = self._empty(config.vocab_size, config.hidden_size)
        self._head = (
            self._embedding if config.tie_word_embeddings else self._empty(config.vocab_size, config.hidden_size)
        )
        self._final_norm = self._empty(config.hidden_size)
        self._layers = [self._empty_layer() for _ in range(config.num_layers)]
        self._cos_sin = rope_table(config, device)

    def parameters(self) -> dict[str, Tensor]:
        """Name in the checkpoint -> the part of this decoder's memory that it fills."""
        config = self.config
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        named = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._final_norm}
        if not config.tie_word_embeddings:
            named["lm_head.weight"] = self._head
        for index, layer in enumerate(self._layers):
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
            if layer.q_norm is not None and layer.k_norm is not None:
                parts |= {"self_attn.q_norm": layer.q_norm, "self_attn.k_norm": layer.k_norm}
            named |= {f"model.layers.{index}.{name}.weight": part for name, part in parts.items()}
        return named

    def forward(self, input_ids: Tensor, positions: Tensor, cache: KvCache, inputs: AttentionInputs) -> Tensor:
        """Hidden states [T, hidden] of input_ids [T] at positions [T]; writes their KV into the cache on the way."""
        eps = self.config.rms_norm_eps
        hidden = F.embedding(input_ids, self._embedding)
        residual = hidden
        normed = self._ops.rms_norm(hidden, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            if index > 0:
                normed, residual = self._ops.add_rms_norm(hidden, residual, layer.input_norm, eps)
            hidden = self._attention(layer, normed, positions, cache[index], inputs)
            normed, residual = self._ops.add_rms_norm(hidden, residual, layer.post_norm, eps)
            gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = F.linear(F.silu(gate) * up, layer.down)
        return self._ops.add_rms_norm(hidden, residual, self._final_norm, eps)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab] float32."""
        return F.linear(hidden, self._head).float()

    def _attention(
        self, layer: Layer, normed: Tensor, positions: Tensor, cache: tuple[Tensor, Tensor], inputs: AttentionInputs
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = F.linear(normed, layer.qkv).view(-1, heads + 2 * kv_heads, config.head_dim)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        query = self._ops.norm_rope(query, layer.q_norm, config.rms_norm_eps, self._cos_sin, positions)
        key = self._ops.norm_rope(key, layer.k_norm, config.rms_norm_eps, self._cos_sin, positions)
        self._ops.write_kv(key, value, *cache, inputs.slot_mapping)
        mixed = self._ops.paged_attention(query, *cache, inputs, config.head_dim**-0.5)
        return F.linear(mixed.flatten(1), layer.out)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _empty_layer(self) -> Layer:
        config = self.config
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        return Layer(
            input_norm=self._empty(hidden),
            qkv=self._empty((config.num_heads + 2 * config.num_kv_heads) * head_dim, hidden),
            q_norm=self._empty(head_dim) if config.qk_norm else None,
            k_norm=self._empty(head_dim) if config.qk_norm else None,
            out=self._empty(hidden, config.num_heads * head_dim),
            post_norm=self._empty(hidden),
            gate_up=self._empty(2 * inner, hidden),
            down=self._empty(hidden, inner),
        )


def rope_table(config: DecoderConfig, device: torch.device) -> Tensor:
    """[max positions, head_dim] float32: the cosines, then the sines, of each position's angles."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
