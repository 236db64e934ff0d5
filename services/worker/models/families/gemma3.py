"""Gemma 3 (arXiv 2503.19786): Gemma 2 with norms of each query and key head instead of a cap of scores, and windows in
five of six layers, which have a rope of their own."""

from dataclasses import replace

from services.worker.models.description import Description, HeadNorms, Layer
from services.worker.models.families import gemma2
from services.worker.models.families.parts import (
    SLIDING,
    attention,
    decoder,
    gated_mlp,
    num_layers,
    rope_of,
    ropes_by_window,
    sliding_by_pattern,
    window_of,
    windowed,
)
from services.worker.models.settings import FULL_ATTENTION, Settings

DEFAULTS = {
    **gemma2.DEFAULTS,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}
THETA, WINDOW_THETA = 1_000_000.0, 10_000.0


def describe(settings: Settings) -> Description:
    positions = settings.size("max_position_embeddings")  # stretched already, if they are
    rope = rope_of(settings, theta=THETA, layer_type=FULL_ATTENTION)
    rope = replace(rope, max_length=positions, default_length=positions)
    own_rope = rope_of(settings, theta=WINDOW_THETA, layer_type=SLIDING, theta_key="rope_local_base_freq")
    norm, bias = gemma2.norm_from_one(settings), settings.flag("attention_bias")
    scale = gemma2.score_scale(settings)
    attend = attention(settings, rope, scale=scale, bias=bias, out_bias=bias, norms=HeadNorms(norm))
    layer = Layer(attend, gated_mlp(settings, activation="hidden_activation"), norm, norms="sandwich")
    count, window = num_layers(settings), window_of(settings)
    sliding = sliding_by_pattern(settings, window)
    layers = windowed(ropes_by_window([layer] * count, sliding, own_rope), sliding, window)
    return decoder(settings, layers, rope, norm, names=gemma2.NAMES, **gemma2.outer(settings))
