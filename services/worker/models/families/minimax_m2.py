"""MiniMax-M2 (https://huggingface.co/MiniMaxAI/MiniMax-M2): experts by sigmoid with a correction, queries and keys
normed over their whole width, a part of each head turns."""

from services.worker.models.description import Description, HeadNorms, Layer, Names, Router
from services.worker.models.families.mixtral import RESPELLED
from services.worker.models.families.parts import attention, decoder, gated_mlp, heads, mixture, rms_norm, rope_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 200064,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 196608,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
    "use_qk_norm": True,
}
THETA = 5_000_000.0


def describe(settings: Settings) -> Description:
    rotary, (_, _, head_dim) = settings.raw("rotary_dim"), heads(settings)
    share = 1.0 if rotary is None else settings.size("rotary_dim") / head_dim
    rope, norm = rope_of(settings, theta=THETA, share=share), rms_norm(settings)
    settings.must_be("use_qk_norm", True)
    settings.must_be("scoring_func", "sigmoid")
    settings.must_be("use_routing_bias", True)
    settings.must_be("shared_intermediate_size", 0)
    attend = attention(settings, rope, norms=HeadNorms(norm, over="width"))
    router = Router(settings.size("num_experts_per_tok"), scores="sigmoid", correction=True)
    experts = mixture(settings, settings.spelling("num_local_experts", "num_experts"), gated_mlp(settings), router)
    names = Names(correction="mlp.e_score_correction_bias", respelled=RESPELLED)
    return decoder(settings, Layer(attend, experts, norm), rope, norm, names=names)
