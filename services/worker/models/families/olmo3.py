"""OLMo 3 (arXiv 2512.13961): OLMo 2 with windows in three of four layers, which have a rope of their own."""

from services.worker.models.description import Description, HeadNorms, Layer
from services.worker.models.families import olmo2
from services.worker.models.families.parts import (
    SLIDING,
    all_but_every,
    attention,
    decoder,
    gated_mlp,
    num_layers,
    rms_norm,
    rope_of,
    ropes_by_window,
    sliding_layers,
    window_of,
    windowed,
)
from services.worker.models.settings import FULL_ATTENTION, Settings

DEFAULTS = {**olmo2.DEFAULTS, "sliding_window": 4096}
# A rope_theta outside rope_parameters is that of all layers; transformers 5.23 takes it for full ones alone.
THETA, PATTERN = 500_000.0, 4


def describe(settings: Settings) -> Description:
    rope, own_rope = (rope_of(settings, theta=THETA, layer_type=kind) for kind in (FULL_ATTENTION, SLIDING))
    bias, norm = settings.flag("attention_bias"), rms_norm(settings)
    attend = attention(settings, rope, bias=bias, out_bias=bias, norms=HeadNorms(norm, over="width"))
    layer = Layer(attend, gated_mlp(settings), norm, norms="output")
    count, window = num_layers(settings), window_of(settings)
    sliding = sliding_layers(settings, window, all_but_every(PATTERN, count))
    layers = windowed(ropes_by_window([layer] * count, sliding, own_rope), sliding, window)
    return decoder(settings, layers, rope, norm, names=olmo2.NAMES)
