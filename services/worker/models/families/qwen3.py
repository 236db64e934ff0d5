"""Qwen3, dense (arXiv 2505.09388): RMS norm of each query and key head, a window as in Qwen2."""

from services.worker.models.description import Description, HeadNorms, Layer
from services.worker.models.families.parts import attention, decoder, gated_mlp, rms_norm, rope_of
from services.worker.models.families.qwen2 import last_windowed
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "tie_word_embeddings": False,
}


def describe(settings: Settings) -> Description:
    rope, bias, norm = rope_of(settings), settings.flag("attention_bias"), rms_norm(settings)
    norms = HeadNorms(norm, over="head")
    layer = Layer(attention(settings, rope, bias=bias, out_bias=bias, norms=norms), gated_mlp(settings), norm)
    return decoder(settings, last_windowed(settings, layer), rope, norm)
