"""gpt-oss (arXiv 2508.10925): experts by softmax over the chosen ones, with biases and clamped activations; sinks, and
windows in every second layer."""

from services.worker.models.description import Description, Fused, Layer, Mlp, Names, Router
from services.worker.models.families.parts import (
    all_but_every,
    attention,
    decoder,
    mixture,
    num_layers,
    rms_norm,
    rope_of,
    sliding_layers,
    window_of,
    windowed,
)
from services.worker.models.settings import Settings

DEFAULTS = {
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}
THETA = 150_000.0
GATE_UP = ("gate_proj", "up_proj")
NAMES = Names(
    router="mlp.router",
    fused=(
        Fused(
            "mlp.experts.gate_up_proj", tuple(f"{part}.weight" for part in GATE_UP), transposed=True, interleaved=True
        ),
        Fused("mlp.experts.gate_up_proj_bias", tuple(f"{part}.bias" for part in GATE_UP), interleaved=True),
        Fused("mlp.experts.down_proj", ("down_proj.weight",), transposed=True),
        Fused("mlp.experts.down_proj_bias", ("down_proj.bias",)),
    ),
)


def describe(settings: Settings) -> Description:
    rope, norm, bias = rope_of(settings, theta=THETA), rms_norm(settings), settings.flag("attention_bias")
    attend = attention(settings, rope, bias=bias, out_bias=bias, sinks=True)
    settings.must_be("hidden_act", "silu")
    alpha, limit = settings.number("swiglu_alpha"), settings.number("swiglu_limit")
    expert = Mlp(settings.size("intermediate_size"), "clamped_silu", bias=True, alpha=alpha, limit=limit)
    router = Router(settings.size("num_experts_per_tok"), bias=True)
    experts = mixture(settings, settings.spelling("num_local_experts", "num_experts"), expert, router)
    count, window = num_layers(settings), window_of(settings)
    sliding = sliding_layers(settings, window, all_but_every(2, count))
    layers = windowed([Layer(attend, experts, norm)] * count, sliding, window)
    return decoder(settings, layers, rope, norm, names=NAMES)
