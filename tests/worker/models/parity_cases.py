"""Tiny checkpoints of every family, written by transformers: two of each, which together have all its traits.

Weights are random and widely spread, so that answers vary; biases are not zero, weights of norms are not one. All
values are exact in bfloat16.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.worker.models.transformers_versions import skip_if_older

SPREAD = 2.6  # standard deviation of a matrix's results, for inputs of standard deviation 1
BASE: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
TWO_HEADS_OF_80 = {"hidden_size": 160, "num_attention_heads": 2, "num_key_value_heads": 1}
TWO_HEADS_OF_96 = {"hidden_size": 192, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
MINISTRAL_3 = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.3}


def longrope(original: int, pairs: int) -> dict[str, Any]:
    """Returns the keys of a longrope with `pairs` frequencies, trained with `original` positions."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1 + index / pairs for index in range(pairs)],
            "long_factor": [2 + 6 * index / pairs for index in range(pairs)],
        },
    }


@dataclass(frozen=True)
class Case:
    """A configuration, by transformers' `model_type`. `shortest`: of its prompts. `fixed_length`: a dynamic rope is set
    for that length, whatever a prompt's length is."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    max_model_len: int = 256
    shortest: int = 1
    fixed_length: int | None = None

    def save(self, path: Path, seed: int = 5) -> Path:
        """Writes the checkpoint to `path`, in float32. Returns `path`."""
        config = AutoConfig.for_model(self.model_type, **{**BASE, **self.config})
        model = AutoModelForCausalLM.from_config(config)
        spread(model, seed)
        model.save_pretrained(path)
        return path

    def reference(self, path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Returns transformers' model of the checkpoint. Eager: older ones ignore soft caps and sinks otherwise."""
        skip_if_older(self.model_type)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
        if self.fixed_length is not None:
            rope = model.model.rotary_emb
            frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](model.config, None, seq_len=self.fixed_length)
            rope.rope_type = "default"
            rope.inv_freq.copy_(frequencies)
        return model


@torch.no_grad()
def spread(model: torch.nn.Module, seed: int) -> None:
    """Gives every parameter random values."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.3 * values
        elif parameter.dim() == 1:
            values = 0.25 * values
        else:
            values = values * SPREAD / parameter.shape[-1] ** 0.5
        parameter.copy_(values.bfloat16())
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.copy_((0.3 * torch.randn(buffer.shape, generator=generator)).bfloat16())


# The first of each family runs in `make test`.
CASES: dict[str, Case] = {
    "cohere-norms": Case(
        "cohere",
        {"head_dim": 96, "use_qk_norm": True, "attention_bias": True, "logit_scale": 0.5, "layer_norm_eps": 1e-3},
    ),
    "cohere": Case("cohere", {**TWO_HEADS_OF_80, "logit_scale": 1.5, "tie_word_embeddings": False}),
    "cohere2": Case(
        "cohere2",
        {
            **TWO_HEADS_OF_80,
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "sliding_window_pattern": 2,
            "logit_scale": 0.5,
        },
    ),
    "cohere2-listed": Case(
        "cohere2",
        {
            **TWO_HEADS_OF_96,
            "sliding_window": 33,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": True,
            "layer_norm_eps": 1e-3,
            "tie_word_embeddings": False,
            "rope_parameters": LLAMA_3,
        },
    ),
    "exaone4": Case(
        "exaone4",
        {
            **TWO_HEADS_OF_80,
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "sliding_window_pattern": 2,
            "tie_word_embeddings": True,
        },
    ),
    "exaone4-full": Case(
        "exaone4",
        {
            "head_dim": 96,
            "sliding_window": None,
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": LLAMA_3,
        },
    ),
    "gemma2": Case(
        "gemma2",
        {
            "head_dim": 80,
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 9.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma2-listed": Case(
        "gemma2",
        {
            "head_dim": 96,
            "num_key_value_heads": 1,
            "sliding_window": 37,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": True,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "hidden_activation": "silu",
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-3,
            "rope_parameters": LLAMA_3,
        },
    ),
    "gemma3": Case(
        "gemma3_text",
        {
            "head_dim": 80,
            "num_hidden_layers": 5,
            "sliding_window": 20,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 30,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma3-listed": Case(
        "gemma3_text",
        {
            "head_dim": 96,
            "num_key_value_heads": 4,
            "sliding_window": 41,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": True,
            "final_logit_softcapping": 9.0,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-3,
        },
    ),
    "glm4-moe": Case(
        "glm4_moe",
        {
            "head_dim": 80,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 40,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "glm4-moe-tied": Case(
        "glm4_moe",
        {
            "head_dim": 96,
            "moe_intermediate_size": 24,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.25},
        },
    ),
    "gpt-oss": Case(
        "gpt_oss",
        {
            "head_dim": 80,
            "num_hidden_layers": 3,
            "intermediate_size": 40,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 20,
            "swiglu_limit": 1.5,
            "rope_parameters": YARN,
        },
    ),
    "gpt-oss-listed": Case(
        "gpt_oss",
        {
            "head_dim": 96,
            "num_key_value_heads": 1,
            "num_local_experts": 3,
            "num_experts_per_tok": 3,
            "sliding_window": 33,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": False,
            "swiglu_alpha": 1.0,
            "swiglu_limit": 4.0,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        },
    ),
    "granite": Case(
        "granite",
        {
            "head_dim": 80,
            "attention_bias": True,
            "mlp_bias": True,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 0.5,
            "tie_word_embeddings": True,
        },
    ),
    "granite-wide": Case(
        "granite",
        {
            **TWO_HEADS_OF_96,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.05,
            "residual_multiplier": 0.22,
            "rope_parameters": YARN,
        },
    ),
    "granitemoe": Case(
        "granitemoe",
        {
            "head_dim": 80,
            "intermediate_size": 40,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 1.25,
        },
    ),
    "granitemoe-wide": Case(
        "granitemoe",
        {
            **TWO_HEADS_OF_96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_multiplier": 0.05,
            "residual_multiplier": 0.6,
            "attention_bias": True,
            "hidden_act": "gelu",
            "rope_parameters": YARN,
        },
    ),
    "llama-3": Case(
        "llama",
        {
            "head_dim": 80,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": LLAMA_3,
        },
    ),
    "llama-dynamic": Case(
        "llama",
        {
            "head_dim": 96,
            "hidden_act": "gelu",
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        },
        fixed_length=256,
    ),
    "minimax-m2": Case(
        "minimax_m2",
        {
            "head_dim": 80,
            "intermediate_size": 40,
            "num_local_experts": 7,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "minimax-m2-tied": Case(
        "minimax_m2",
        {
            "head_dim": 96,
            "num_key_value_heads": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-3,
            "tie_word_embeddings": True,
        },
    ),
    "ministral3": Case("ministral3", {"head_dim": 96, "rope_parameters": MINISTRAL_3, "sliding_window": 30}),
    "ministral3-mscale": Case(
        "ministral3",
        {
            "head_dim": 80,
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "rope_parameters": {**MINISTRAL_3, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1},
        },
    ),
    "mistral": Case("mistral", {"head_dim": 80, "num_key_value_heads": 1, "sliding_window": 21}),
    "mistral-linear": Case(
        "mistral",
        {
            "head_dim": 96,
            "tie_word_embeddings": True,
            "sliding_window": None,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5},
        },
    ),
    "mixtral": Case(
        "mixtral",
        {
            "head_dim": 80,
            "intermediate_size": 40,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 21,
        },
    ),
    "mixtral-one": Case(
        "mixtral",
        {
            "head_dim": 96,
            "num_key_value_heads": 1,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "tie_word_embeddings": True,
            "rope_parameters": LLAMA_3,
        },
    ),
    "olmo2": Case("olmo2", {"head_dim": 80, "attention_bias": True, "rms_norm_eps": 1e-3}),
    "olmo2-yarn": Case("olmo2", {**TWO_HEADS_OF_96, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "olmo3": Case(
        "olmo3",
        {
            "head_dim": 80,
            "num_hidden_layers": 5,
            "sliding_window": 20,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "olmo3-listed": Case(
        "olmo3",
        {
            **TWO_HEADS_OF_96,
            "sliding_window": 33,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": True,
        },
    ),
    "phi3-long": Case(
        "phi3",
        {**TWO_HEADS_OF_80, **longrope(16, 30), "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
        shortest=17,
    ),
    "phi3-short": Case("phi3", {**TWO_HEADS_OF_96, **longrope(160, 48), "sliding_window": 33}, max_model_len=160),
    "qwen2": Case("qwen2", {**TWO_HEADS_OF_80, "rope_parameters": YARN}),
    "qwen2-tied": Case(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "hidden_act": "gelu_new",
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 17,
            "max_window_layers": 1,
        },
    ),
    "qwen3": Case("qwen3", {"head_dim": 80, "attention_bias": True, "rms_norm_eps": 1e-3}),
    "qwen3-tied": Case("qwen3", {"head_dim": 96, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3-moe": Case(
        "qwen3_moe",
        {
            "head_dim": 80,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "moe_intermediate_size": 40,
            "num_experts": 9,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "attention_bias": True,
        },
    ),
    "qwen3-moe-windowed": Case(
        "qwen3_moe",
        {
            "head_dim": 96,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
            "moe_intermediate_size": 24,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "use_sliding_window": True,
            "sliding_window": 21,
            "tie_word_embeddings": True,
        },
    ),
    "seed-oss": Case("seed_oss", {"head_dim": 96, "attention_out_bias": True, "mlp_bias": True}),
    "seed-oss-plain": Case(
        "seed_oss", {"head_dim": 80, "attention_bias": False, "attention_out_bias": False, "tie_word_embeddings": True}
    ),
    "smollm3": Case(
        "smollm3", {**TWO_HEADS_OF_80, "num_hidden_layers": 3, "no_rope_layer_interval": 2, "attention_bias": True}
    ),
    "smollm3-listed": Case(
        "smollm3",
        {
            **TWO_HEADS_OF_96,
            "no_rope_layers": [0, 1],
            "mlp_bias": True,
            "tie_word_embeddings": False,
            "use_sliding_window": True,
            "sliding_window": 12,
        },
    ),
    "stablelm-parallel": Case(
        "stablelm",
        {
            **TWO_HEADS_OF_80,
            "use_parallel_residual": True,
            "qk_layernorm": True,
            "use_qkv_bias": True,
            "layer_norm_eps": 1e-3,
        },
    ),
    "stablelm": Case(
        "stablelm", {**TWO_HEADS_OF_96, "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}}
    ),
    "starcoder2": Case("starcoder2", {**TWO_HEADS_OF_80, "norm_epsilon": 1e-3, "sliding_window": 40}),
    "starcoder2-plain": Case(
        "starcoder2", {**TWO_HEADS_OF_96, "use_bias": False, "hidden_act": "relu2", "tie_word_embeddings": False}
    ),
}
ONE_OF_EACH = list({case.model_type: name for name, case in reversed(CASES.items())}.values())
