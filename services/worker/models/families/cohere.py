"""Command R (https://docs.cohere.com/docs/command-r): one layer norm for attention and MLP, interleaved rope."""

from services.worker.models.description import Description, HeadNorms, Layer, Names, Norm
from services.worker.models.families.parts import attention, decoder, gated_mlp, rope_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}
THETA = 500_000.0
NAMES = Names(norms=("input_layernorm",))


def describe(settings: Settings) -> Description:
    rope = rope_of(settings, theta=THETA, interleaved=True)
    bias, norm = settings.flag("attention_bias"), Norm(settings.number("layer_norm_eps"), centred=True)
    norms = HeadNorms(norm, over="own") if settings.flag("use_qk_norm") else None
    attend = attention(settings, rope, bias=bias, out_bias=bias, norms=norms)
    layer = Layer(attend, gated_mlp(settings), norm, norms="parallel")
    return decoder(settings, layer, rope, norm, names=NAMES, logit_factor=settings.number("logit_scale"))
