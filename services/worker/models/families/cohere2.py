"""Command R7B and Command A (arXiv 2504.00698): Command R with windows in three of four layers, and no positions in the
others."""

from services.worker.models.description import Description, Layer, Norm
from services.worker.models.families import cohere
from services.worker.models.families.parts import (
    attention,
    decoder,
    gated_mlp,
    rope_of,
    sliding_by_pattern,
    turning_layers,
    windowed,
)
from services.worker.models.settings import Settings

DEFAULTS = {**cohere.DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4}


def describe(settings: Settings) -> Description:
    rope, window = rope_of(settings, interleaved=True), settings.size("sliding_window")
    bias, norm = settings.flag("attention_bias"), Norm(settings.number("layer_norm_eps"), centred=True)
    layer = Layer(attention(settings, rope, bias=bias, out_bias=bias), gated_mlp(settings), norm, norms="parallel")
    sliding = sliding_by_pattern(settings, window)
    layers = windowed(turning_layers(layer, sliding), sliding, window)
    scale = settings.number("logit_scale")
    return decoder(settings, layers, rope, norm, names=cohere.NAMES, logit_factor=scale)
