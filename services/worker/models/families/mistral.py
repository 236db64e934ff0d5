"""Mistral (arXiv 2310.06825), without a window, and Ministral 3, whose queries grow beyond the trained length."""

from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import attention, decoder, gated_mlp, heads, rms_norm
from services.worker.models.rope import read_rope
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
MINISTRAL_3_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "rope_parameters": {
        "type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}


def describe(settings: Settings) -> Description:
    _, _, head_dim = heads(settings)
    rope = read_rope(settings, head_dim)
    settings.no_window(settings.max_model_len or rope.default_length)
    layer = Layer(attention(settings, rope, head_dim), gated_mlp(settings), rms_norm(settings))
    return decoder(settings, layer, rope, rms_norm(settings))
