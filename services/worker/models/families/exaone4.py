"""EXAONE 4 (arXiv 2507.11407): norms behind attention and MLP, a norm of each query and key head, global layers without
positions; where its window has no effect."""

from services.worker.errors import ModelError
from services.worker.models.description import Description, HeadNorms, Layer
from services.worker.models.families.olmo2 import NAMES
from services.worker.models.families.parts import (
    all_but_every,
    attention,
    decoder,
    gated_mlp,
    num_layers,
    refuse_window,
    rms_norm,
    rope_of,
    turning_layers,
)
from services.worker.models.settings import FULL_ATTENTION, Settings

DEFAULTS = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
SLIDING = "sliding_attention"


def describe(settings: Settings) -> Description:
    rope, norm = rope_of(settings), rms_norm(settings)
    refuse_window(settings, rope)
    attend = attention(settings, rope, norms=HeadNorms(norm, over="head"))
    layer = Layer(attend, gated_mlp(settings), norm, norms="output")
    return decoder(settings, turning_layers(layer, _turning(settings)), rope, norm, names=NAMES)


def _turning(settings: Settings) -> list[bool]:
    """Returns for each layer whether it has positions: with a window, only the layers that have it. Raises ModelError
    for layer_types that do not fit."""
    count, kinds = num_layers(settings), settings.raw("layer_types")
    settings.raw("sliding_window_pattern")  # has no meaning without a window or beside layer_types
    if settings.raw("sliding_window") is None:
        return [True] * count
    if kinds is None:
        return all_but_every(settings.size("sliding_window_pattern"), count)
    if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {SLIDING, FULL_ATTENTION}:
        raise ModelError(f"config.json: layer_types must be a list of {count} times {SLIDING!r} or {FULL_ATTENTION!r}")
    return [kind == SLIDING for kind in kinds]
