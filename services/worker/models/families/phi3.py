"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219, 2503.01743): fused projections, a part of each head turns, longrope."""

from services.worker.models.description import Description, Layer, Names
from services.worker.models.families.parts import attention, decoder, gated_mlp, rms_norm, rope_of, window_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NAMES = Names(qkv=("self_attn.qkv_proj",), inner=("mlp.gate_up_proj",))


def describe(settings: Settings) -> Description:
    rope = rope_of(settings, share=1.0, renamed={"su": "longrope", "yarn": "longrope"})
    layer = Layer(attention(settings, rope, window=window_of(settings)), gated_mlp(settings), rms_norm(settings))
    return decoder(settings, layer, rope, rms_norm(settings), names=NAMES)
