"""SmolLM3 (https://huggingface.co/blog/smollm3): some layers without positions, and with a window."""

from services.worker.errors import ModelError
from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import (
    all_but_every,
    attention,
    decoder,
    gated_mlp,
    num_layers,
    rms_norm,
    rope_of,
    sliding_layers,
    turning_layers,
    window_of,
    windowed,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "no_rope_layer_interval": 4,
    "tie_word_embeddings": True,
}
THETA = 2_000_000.0


def describe(settings: Settings) -> Description:
    rope, bias = rope_of(settings, theta=THETA), settings.flag("attention_bias")
    attend = attention(settings, rope, bias=bias, out_bias=bias)
    layer = Layer(attend, gated_mlp(settings, bias=settings.flag("mlp_bias")), rms_norm(settings))
    turning, window = _turning(settings), window_of(settings)
    window = window if settings.flag("use_sliding_window") else None
    sliding = sliding_layers(settings, window, [window is not None and not turns for turns in turning])
    layers = windowed(turning_layers(layer, turning), sliding, window)
    return decoder(settings, layers, rope, rms_norm(settings))


def _turning(settings: Settings) -> list[bool]:
    """Returns for each layer whether it has positions. Raises ModelError for a list that does not fit."""
    count, listed = num_layers(settings), settings.raw("no_rope_layers")
    if listed is None:
        return all_but_every(settings.size("no_rope_layer_interval"), count)
    if not isinstance(listed, list) or len(listed) < count or any(one not in (0, 1) for one in listed):
        raise ModelError(f"config.json: no_rope_layers must be a list of at least {count} times 0 or 1")
    return [bool(one) for one in listed[:count]]
