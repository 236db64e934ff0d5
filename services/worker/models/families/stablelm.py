"""StableLM (arXiv 2402.17834): layer norm with biases, a quarter of each head turns, a parallel block by settings."""

from services.worker.models.description import Description, HeadNorms, Layer, Names, Norm
from services.worker.models.families.parts import attention, decoder, gated_mlp, rope_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
SHARE = 0.25
HEAD_NORMS = ("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}")


def describe(settings: Settings) -> Description:
    rope, eps = rope_of(settings, share=SHARE), settings.number("layer_norm_eps")
    norm, is_parallel = Norm(eps, centred=True, bias=True), settings.flag("use_parallel_residual")
    norms = HeadNorms(Norm(eps, centred=True), over="own") if settings.flag("qk_layernorm") else None
    attend = attention(settings, rope, bias=settings.flag("use_qkv_bias"), norms=norms)
    layer = Layer(attend, gated_mlp(settings), norm, norms="parallel" if is_parallel else "input")
    usual = Names(head_norms=HEAD_NORMS)
    names = Names(head_norms=HEAD_NORMS, norms=usual.norms[:1]) if is_parallel else usual
    return decoder(settings, layer, rope, norm, names=names)
