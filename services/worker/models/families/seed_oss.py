"""Seed-OSS (https://github.com/ByteDance-Seed/seed-oss): biases of queries, keys and values, others by settings."""

from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import attention, decoder, gated_mlp, rms_norm, rope_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 155136,
    "hidden_size": 4096,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 524288,
    "rms_norm_eps": 1e-6,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


def describe(settings: Settings) -> Description:
    rope = rope_of(settings)
    bias, out_bias = settings.flag("attention_bias"), settings.flag("attention_out_bias")
    layer = Layer(
        attention(settings, rope, bias=bias, out_bias=out_bias),
        gated_mlp(settings, bias=settings.flag("mlp_bias")),
        rms_norm(settings),
    )
    return decoder(settings, layer, rope, rms_norm(settings))
