"""Random-weight checkpoints in Hugging Face format, written by transformers itself.

Their weights have a larger spread than by default: with small weights a model answers the same token for ever, and
position bugs hide.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging as transformers_logging

import demo

transformers_logging.disable_progress_bar()
WIDE = 0.2
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
DEMO_VOCAB_SIZE = 1024
SMALL: dict[str, Any] = {
    "vocab_size": DEMO_VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "bos_token_id": None,
    "pad_token_id": None,
}
# Three layers with a window to one without: one place, four KV groups.
WINDOWED: dict[str, Any] = {
    **SMALL,
    "num_hidden_layers": 4,
    "sliding_window": 20,
    "sliding_window_pattern": 4,
    "query_pre_attn_scalar": 16,
    "tie_word_embeddings": False,
}
# Experts, sinks, a window in the first of two layers.
MIXED: dict[str, Any] = {
    **SMALL,
    "intermediate_size": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 20,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
# Experts in every layer, full attention.
SPARSE: dict[str, Any] = {
    **SMALL,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
# Heads and sizes for the tests of parity with transformers.
PARITY_CONFIGS: dict[str, dict[str, Any]] = {
    "grouped-tied": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    "untied-wide-heads": {
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": False,
        "num_hidden_layers": 3,
    },
    "odd-sizes": {
        "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 24,
        "intermediate_size": 136, "tie_word_embeddings": False, "num_hidden_layers": 3,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    },
}  # fmt: skip


def make_qwen3(path: Path, seed: int = 0, shard_size: str = "5GB", **config: Any) -> Path:
    """Writes config.json, generation_config.json, safetensors and the demo's tokenizer into `path`, and returns `path`.
    `config` changes the values of SMALL."""
    torch.manual_seed(seed)
    return _saved(Qwen3ForCausalLM(Qwen3Config(**{**SMALL, "initializer_range": WIDE, **config})), path, shard_size)


def make_gemma3(path: Path, seed: int = 0, **config: Any) -> Path:
    """Writes a checkpoint as make_qwen3 does. `config` changes the values of WINDOWED."""
    torch.manual_seed(seed)
    return _saved(Gemma3ForCausalLM(Gemma3TextConfig(**{**WINDOWED, "initializer_range": WIDE, **config})), path)


def make_gpt_oss(path: Path, seed: int = 0, **config: Any) -> Path:
    """Writes a checkpoint as make_qwen3 does. `config` changes the values of MIXED."""
    torch.manual_seed(seed)
    return _saved(GptOssForCausalLM(GptOssConfig(**{**MIXED, "initializer_range": WIDE, **config})), path)


def make_qwen3_moe(path: Path, seed: int = 0, shard_size: str = "5GB", **config: Any) -> Path:
    """Writes a checkpoint as make_qwen3 does. `config` changes the values of SPARSE."""
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**SPARSE, "initializer_range": WIDE, **config}))
    return _saved(model, path, shard_size)


def _saved(model: PreTrainedModel, path: Path, shard_size: str = "5GB") -> Path:
    model.save_pretrained(path, max_shard_size=shard_size)
    for name in TOKENIZER_FILES:
        shutil.copy(demo.CHECKPOINT / name, path / name)
    return path
