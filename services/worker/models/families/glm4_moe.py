"""GLM-4.5 and later with experts (arXiv 2508.06471): sigmoid with a correction, groups, a shared expert, dense first
layers, half of each head turns."""

from services.worker.models.description import Description, HeadNorms, Layer, Mlp, Names, Router
from services.worker.models.families.parts import (
    attention,
    decoder,
    gated_mlp,
    mixture,
    num_layers,
    rms_norm,
    rope_of,
    with_mixtures,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
}
SHARE = 0.5


def describe(settings: Settings) -> Description:
    rope, norm, count = rope_of(settings, share=SHARE), rms_norm(settings), num_layers(settings)
    norms = HeadNorms(norm) if settings.flag("use_qk_norm") else None
    attend = attention(settings, rope, bias=settings.flag("attention_bias"), norms=norms)
    router = Router(
        settings.size("num_experts_per_tok"),
        scores="sigmoid",
        renormalised=settings.flag("norm_topk_prob"),
        correction=True,
        groups=settings.size("n_group"),
        kept_groups=settings.size("topk_group"),
        scale=settings.number("routed_scaling_factor"),
    )
    settings.must_be("scoring_func", "sigmoid")
    settings.must_be("topk_method", "noaux_tc")
    settings.must_be("moe_layer_freq", 1)
    size, activation = settings.size("moe_intermediate_size"), settings.activation()
    num_shared = settings.whole("n_shared_experts")
    shared = Mlp(size * num_shared, activation) if num_shared else None
    experts = mixture(settings, "n_routed_experts", Mlp(size, activation), router, shared)
    dense = settings.whole("first_k_dense_replace")
    layers = with_mixtures(Layer(attend, gated_mlp(settings), norm), experts, [at >= dense for at in range(count)])
    skipped = (*Names().skipped, f"model.layers.{count}.")  # multi-token prediction
    return decoder(settings, layers, rope, norm, names=Names(skipped=skipped))
