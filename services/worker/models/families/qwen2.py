"""Qwen2 and Qwen2.5 (arXiv 2412.15115): biases of queries, keys and values, a window in the last layers of some."""

from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import (
    attention,
    decoder,
    gated_mlp,
    num_layers,
    rms_norm,
    rope_of,
    sliding_layers,
    switched_window,
    windowed,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "tie_word_embeddings": False,
}


def describe(settings: Settings) -> Description:
    rope = rope_of(settings)
    layer = Layer(attention(settings, rope, bias=True), gated_mlp(settings), rms_norm(settings))
    return decoder(settings, last_windowed(settings, layer), rope, rms_norm(settings))


def last_windowed(settings: Settings, layer: Layer) -> list[Layer]:
    """Returns the layers. If the window is used, those from max_window_layers on have it, or those of layer_types."""
    count, window = num_layers(settings), switched_window(settings)
    listed = settings.raw("layer_types") is not None
    first = count if window is None or listed else settings.whole("max_window_layers")
    return windowed([layer] * count, sliding_layers(settings, window, [at >= first for at in range(count)]), window)
