"""Llama 2, 3 and 3.x (arXiv 2407.21783)."""

from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import attention, decoder, gated_mlp, rms_norm, rope_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def describe(settings: Settings) -> Description:
    rope, bias = rope_of(settings), settings.flag("attention_bias")
    layer = Layer(
        attention(settings, rope, bias=bias, out_bias=bias),
        gated_mlp(settings, bias=settings.flag("mlp_bias")),
        rms_norm(settings),
    )
    return decoder(settings, layer, rope, rms_norm(settings))
