"""Parses config.json (Hugging Face) into a DecoderConfig.

Refuses unsupported values of rope_type, attention_bias, use_sliding_window and hidden_act. Ignores keys that it does
not read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.worker.errors import ModelError


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder's sizes, in elements, and settings. `head_dim` need not be hidden_size / num_heads."""

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
    """Returns rope_theta, 10000 if missing. Raises ModelError for another rope_type than "default", or a bad value.

    transformers 5 writes `rope_parameters`, older versions `rope_theta` and `rope_scaling`.
    """
    rope = _object(config, "rope_parameters")
    kind = rope.get("rope_type", "default")
    scaling = _object(config, "rope_scaling")
    if scaling:
        kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise ModelError(f"config.json: rope_type {kind!r} is not supported, only 'default'")
    return _number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0)


def _object(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise ModelError(f"config.json: {name} is {value!r}, but must be an object")
    return value


def _number(config: dict[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ModelError(f"config.json: {name} is {value!r}, but must be a number above 0")
    return float(value)


def _size(config: dict[str, Any], name: str, default: int | None = None) -> int:
    """Returns the setting `name`, an integer above 0. Raises ModelError for another value, or none and no default."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "missing" if value is None else repr(value)
        raise ModelError(f"config.json: {name} is {found}, but must be an integer above 0")
    return value


def _qwen3(config: dict[str, Any]) -> DecoderConfig:
    """Returns the configuration of a dense Qwen3 model (arXiv 2505.09388).

    Raises ModelError for an unsupported setting, or a size that is missing or invalid.
    """
    for name, expected in (("attention_bias", False), ("use_sliding_window", False), ("hidden_act", "silu")):
        if config.get(name, expected) != expected:
            raise ModelError(f"config.json: {name} = {config[name]!r} is not supported, only {expected!r}")
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    num_kv_heads = _size(config, "num_key_value_heads", num_heads)
    head_dim = _size(config, "head_dim", hidden_size // num_heads or None)
    if head_dim % 2:
        raise ModelError(f"config.json: head_dim is {head_dim}, but the rotary embedding needs an even one")
    if num_heads % num_kv_heads:
        raise ModelError(f"config.json: {num_heads} attention heads cannot share {num_kv_heads} key-value heads")
    return DecoderConfig(
        vocab_size=_size(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(config, "intermediate_size"),
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(config),
        max_position_embeddings=_size(config, "max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=True,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


FAMILIES: dict[str, Callable[[dict[str, Any]], DecoderConfig]] = {"Qwen3ForCausalLM": _qwen3}


def decoder_config(config: dict[str, Any]) -> DecoderConfig:
    """Returns config.json as a DecoderConfig. Raises ModelError for an unsupported architecture, setting or size."""
    architectures = config.get("architectures") or []
    for name in architectures if isinstance(architectures, list) else []:
        if isinstance(name, str) and name in FAMILIES:
            return FAMILIES[name](config)
    raise ModelError(f"config.json: architectures {architectures} are not supported, only {sorted(FAMILIES)}")
