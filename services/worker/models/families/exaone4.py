"""EXAONE 4 (arXiv 2507.11407): norms behind attention and MLP, a norm of each query and key head, global layers without
positions, and windows in the others."""

from services.worker.models.description import Description, HeadNorms, Layer
from services.worker.models.families.olmo2 import NAMES
from services.worker.models.families.parts import (
    attention,
    decoder,
    gated_mlp,
    rms_norm,
    rope_of,
    sliding_by_pattern,
    sliding_layers,
    turning_layers,
    window_of,
    windowed,
)
from services.worker.models.settings import Settings

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


def describe(settings: Settings) -> Description:
    rope, norm = rope_of(settings), rms_norm(settings)
    window = window_of(settings)
    attend = attention(settings, rope, norms=HeadNorms(norm, over="head"))
    layer = Layer(attend, gated_mlp(settings), norm, norms="output")
    if window is None:  # then all have positions, too
        sliding_layers(settings, None, [])
        return decoder(settings, layer, rope, norm, names=NAMES)
    sliding = sliding_by_pattern(settings, window)
    return decoder(settings, windowed(turning_layers(layer, sliding), sliding, window), rope, norm, names=NAMES)
