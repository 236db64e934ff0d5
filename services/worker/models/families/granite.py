"""Granite 3.x, dense (arXiv 2405.04324): multipliers of embeddings, scores, residuals and logits."""

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
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def describe(settings: Settings) -> Description:
    rope, bias = rope_of(settings), settings.flag("attention_bias")
    scale = settings.number("attention_multiplier")
    layer = Layer(
        attention(settings, rope, scale=scale, bias=bias, out_bias=bias),
        gated_mlp(settings, bias=settings.flag("mlp_bias")),
        rms_norm(settings),
        residual_factor=settings.number("residual_multiplier"),
    )
    return decoder(
        settings,
        layer,
        rope,
        rms_norm(settings),
        embedding_factor=settings.number("embedding_multiplier"),
        logit_factor=1.0 / settings.number("logits_scaling"),
    )
