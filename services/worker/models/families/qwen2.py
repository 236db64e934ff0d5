"""Qwen2 and Qwen2.5 (arXiv 2412.15115): biases of queries, keys and values."""

from services.worker.models.description import Description, Layer
from services.worker.models.families.parts import attention, decoder, gated_mlp, refuse_window, rms_norm, rope_of
from services.worker.models.rope import ReadRope
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
    refuse_windows(settings, rope)
    layer = Layer(attention(settings, rope, bias=True), gated_mlp(settings), rms_norm(settings))
    return decoder(settings, layer, rope, rms_norm(settings))


def refuse_windows(settings: Settings, rope: ReadRope) -> None:
    """Raises ModelError for a window that has an effect on one of the layers."""
    if not settings.flag("use_sliding_window"):
        settings.raw("sliding_window")
    elif settings.size("max_window_layers") < settings.size("num_hidden_layers"):
        refuse_window(settings, rope)
