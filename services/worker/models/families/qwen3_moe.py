"""Qwen3 with experts (arXiv 2505.09388): Qwen3 with a mixture in most layers, by softmax."""

from services.worker.errors import ModelError
from services.worker.models.description import Description, HeadNorms, Layer, Mlp, Router
from services.worker.models.families.parts import (
    attention,
    decoder,
    gated_mlp,
    mixture,
    num_layers,
    rms_norm,
    rope_of,
    switched_window,
    with_mixtures,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": False,
}


def describe(settings: Settings) -> Description:
    rope, bias, norm = rope_of(settings), settings.flag("attention_bias"), rms_norm(settings)
    window = switched_window(settings)
    attend = attention(settings, rope, bias=bias, out_bias=bias, norms=HeadNorms(norm), window=window)
    router = Router(settings.size("num_experts_per_tok"), renormalised=settings.flag("norm_topk_prob"))
    expert = Mlp(settings.size("moe_intermediate_size"), settings.activation())
    key = settings.spelling("num_experts", "num_local_experts")  # the hub's, and that of transformers 5
    experts = mixture(settings, key, expert, router)
    layers = with_mixtures(Layer(attend, gated_mlp(settings), norm), experts, _mixed(settings))
    return decoder(settings, layers, rope, norm)


def _mixed(settings: Settings) -> list[bool]:
    """Returns for each layer whether it has experts. Raises ModelError for mlp_only_layers that are no list of layers;
    those behind the last one are no error, as in transformers."""
    count, step, listed = num_layers(settings), settings.size("decoder_sparse_step"), settings.raw("mlp_only_layers")
    dense = [] if listed is None else listed
    if not isinstance(dense, list) or not all(type(one) is int and one >= 0 for one in dense):
        raise ModelError(f"config.json: mlp_only_layers is {dense!r}, but must be a list of layers from 0 on")
    return [index not in dense and (index + 1) % step == 0 for index in range(count)]
