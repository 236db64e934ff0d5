"""Gemma 2 (arXiv 2408.00118): norms around attention and MLP with weights less one, soft caps of scores and logits, a
window in every second layer, embeddings that are scaled."""

from services.worker.models.description import Description, Layer, Names, Norm
from services.worker.models.families.parts import (
    all_but_every,
    attention,
    decoder,
    gated_mlp,
    num_layers,
    rope_of,
    sliding_layers,
    window_of,
    windowed,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
NAMES = Names(
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
)


def describe(settings: Settings) -> Description:
    rope, norm, bias = rope_of(settings), norm_from_one(settings), settings.flag("attention_bias")
    soft_cap = settings.number("attn_logit_softcapping", 0.0)
    attend = attention(settings, rope, scale=score_scale(settings), bias=bias, out_bias=bias, soft_cap=soft_cap)
    layer = Layer(attend, gated_mlp(settings, activation="hidden_activation"), norm, norms="sandwich")
    count, window = num_layers(settings), window_of(settings)
    sliding = sliding_layers(settings, window, all_but_every(2, count))
    layers = windowed([layer] * count, sliding, window)
    return decoder(settings, layers, rope, norm, names=NAMES, **outer(settings))


def norm_from_one(settings: Settings) -> Norm:
    return Norm(settings.number("rms_norm_eps"), from_one=True)


def score_scale(settings: Settings) -> float:
    return float(settings.number("query_pre_attn_scalar") ** -0.5)


def outer(settings: Settings) -> dict[str, float]:
    """Returns the fields of Description about embedding and logits."""
    return {
        "embedding_factor": settings.size("hidden_size") ** 0.5,
        "is_factor_rounded": True,
        "logit_soft_cap": settings.number("final_logit_softcapping", 0.0),
    }
