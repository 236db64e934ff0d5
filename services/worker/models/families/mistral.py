"""Mistral (arXiv 2310.06825): a window, in some."""

from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import attention, decoder, gated_mlp, rms_norm, rope_of, window_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
}


def describe(settings: Settings, *, queries_grow: bool = False) -> Description:
    rope = rope_of(settings, queries_grow=queries_grow)
    layer = Layer(attention(settings, rope, window=window_of(settings)), gated_mlp(settings), rms_norm(settings))
    return decoder(settings, layer, rope, rms_norm(settings))
