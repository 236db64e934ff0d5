"""Mixtral (arXiv 2401.04088): Mistral with experts, by softmax over the chosen ones."""

from services.worker.models.description import Description, Layer, Names, Router
from services.worker.models.families.parts import (
    attention,
    decoder,
    gated_mlp,
    mixture,
    rms_norm,
    rope_of,
    window_of,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
THETA = 1_000_000.0
# The hub's spelling of what transformers 5 calls as others do.
RESPELLED = (
    ("block_sparse_moe.", "mlp."),
    (".w1.", ".gate_proj."),
    (".w3.", ".up_proj."),
    (".w2.", ".down_proj."),
)


def describe(settings: Settings) -> Description:
    rope, norm = rope_of(settings, theta=THETA), rms_norm(settings)
    router = Router(settings.size("num_experts_per_tok"))
    experts = mixture(settings, settings.spelling("num_local_experts", "num_experts"), gated_mlp(settings), router)
    layer = Layer(attention(settings, rope, window=window_of(settings)), experts, norm)
    return decoder(settings, layer, rope, norm, names=Names(respelled=RESPELLED))
