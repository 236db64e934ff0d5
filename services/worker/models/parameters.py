"""The names and shapes of a decoder's weights in a checkpoint."""

import math

from services.worker.models.config import DecoderConfig

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def layer_name(index: int, part: str) -> str:
    return f"model.layers.{index}.{part}.weight"


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor of the decoder; matrices are [outputs, inputs]."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    parts = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {layer_name(index, part): shape for part, shape in parts.items()}
    return shapes


def num_weight_bytes(config: DecoderConfig, itemsize: int, matrix_itemsize: int) -> int:
    """Returns the bytes of a decoder's weights: `matrix_itemsize` per element of matrices, `itemsize` of the rest.

    The rest, never quantised, are the norms and an untied embedding. Scales and padding are not counted.
    """
    plain = FINAL_NORM if config.tie_word_embeddings else EMBEDDING
    return sum(
        math.prod(shape) * (itemsize if len(shape) == 1 or name == plain else matrix_itemsize)
        for name, shape in parameter_shapes(config).items()
    )


def _layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config.qk_norm:
        shapes |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
    return shapes
