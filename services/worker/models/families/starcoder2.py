"""StarCoder 2 (arXiv 2402.19173): layer norm, biases everywhere, an MLP without a gate, a window."""

from services.worker.models.description import Description, Layer, Mlp, Names, Norm
from services.worker.models.families.parts import attention, decoder, rope_of, window_of
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "use_bias": True,
    "tie_word_embeddings": True,
}
NAMES = Names(inner=("mlp.c_fc",), down="mlp.c_proj")


def describe(settings: Settings) -> Description:
    rope, bias = rope_of(settings), settings.flag("use_bias")
    norm = Norm(settings.number("norm_epsilon"), centred=True, bias=True)
    mlp = Mlp(settings.size("intermediate_size"), settings.activation(), gated=False, bias=bias)
    layer = Layer(attention(settings, rope, bias=bias, out_bias=bias, window=window_of(settings)), mlp, norm)
    return decoder(settings, layer, rope, norm, names=NAMES)
