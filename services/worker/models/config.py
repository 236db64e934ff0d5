"""From a Hugging Face config.json to what the decoder needs. What the decoder cannot compute is refused by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.worker.errors import ModelError


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes in elements; `head_dim` need not be hidden_size / num_heads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qk_norm: bool  # RMS norm of each query and key head before the rotary embedding
    dtype: str


def _rope_theta(config: dict[str, Any]) -> float:
    """transformers 5 writes `rope_parameters`, older versions `rope_theta` and `rope_scaling`."""
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    kind = rope.get("rope_type", "default")
    scaling = config.get("rope_scaling")
    if scaling:
        kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise ModelError(f"config.json: rope_type {kind!r} is not supported, only 'default'")
    return float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))


def _required(config: dict[str, Any], name: str) -> int:
    if not isinstance(config.get(name), int):
        raise ModelError(f"config.json: {name} is missing or not an integer")
    return int(config[name])


def _qwen3(config: dict[str, Any]) -> DecoderConfig:
    """Qwen3 dense (arXiv 2505.09388)."""
    for name, expected in (("attention_bias", False), ("use_sliding_window", False), ("hidden_act", "silu")):
        if config.get(name, expected) != expected:
            raise ModelError(f"config.json: {name} = {config[name]!r} is not supported, only {expected!r}")
    hidden_size, num_heads = _required(config, "hidden_size"), _required(config, "num_attention_heads")
    num_kv_heads = config.get("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(f"config.json: {num_heads} attention heads cannot share {num_kv_heads} key-value heads")
    return DecoderConfig(
        vocab_size=_required(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_required(config, "intermediate_size"),
        num_layers=_required(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.get("head_dim") or hidden_size // num_heads,
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(config),
        max_position_embeddings=_required(config, "max_position_embeddings"),
        tie_word_embeddings=config.get("tie_word_embeddings", False),
        qk_norm=True,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


FAMILIES: dict[str, Callable[[dict[str, Any]], DecoderConfig]] = {"Qwen3ForCausalLM": _qwen3}


def decoder_config(config: dict[str, Any]) -> DecoderConfig:
    """Raises ModelError for an architecture or a setting that the decoder does not compute."""
    architectures = config.get("architectures") or []
    for name in architectures:
        if name in FAMILIES:
            return FAMILIES[name](config)
    raise ModelError(f"config.json: architectures {architectures} are not supported, only {sorted(FAMILIES)}")
