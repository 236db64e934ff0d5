"""OLMo 2 (arXiv 2501.00656): norms behind attention and MLP, queries and keys normed over their whole width."""

from services.worker.models.description import Description, HeadNorms, Layer, Names
from services.worker.models.families.parts import attention, decoder, gated_mlp, rms_norm, rope_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NAMES = Names(norms=("post_attention_layernorm", "post_feedforward_layernorm"))


def describe(settings: Settings) -> Description:
    rope, bias, norm = rope_of(settings), settings.flag("attention_bias"), rms_norm(settings)
    norms = HeadNorms(norm, over="width")
    attend = attention(settings, rope, bias=bias, out_bias=bias, norms=norms)
    layer = Layer(attend, gated_mlp(settings), norm, norms="output")
    return decoder(settings, layer, rope, norm, names=NAMES)
