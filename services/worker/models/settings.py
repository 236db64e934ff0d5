"""Reads the keys of a config.json, with types, defaults and errors that name the key.

What a family reads is remembered. A key of TRAITS that it does not read and that asks for something is refused: no
trait is accepted and ignored.
"""

import math
from collections.abc import Mapping
from typing import Any

from services.worker.errors import ModelError

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
FULL_ATTENTION = "full_attention"
MAX_SIZE = 2**31 - 1
NUMBERS = 1e-30, 1e30  # a value outside overflows in float32
# Keys of all families that change what a model computes, and the values with which they do not.
TRAITS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (1,),
    "attention_out_bias": (False,),
    "attn_logit_softcapping": (0,),
    "attn_output_gate": (False,),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (0,),
    "is_causal": (True,),
    "kv_lora_rank": (0,),
    "layer_types": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "moe_intermediate_size": (0,),
    "moe_layer_freq": (1,),
    "n_group": (1,),
    "n_routed_experts": (0,),
    "n_shared_experts": (0,),
    "no_rope_layers": (),
    "num_experts": (0, 1),
    "num_kv_shared_layers": (0,),
    "num_local_experts": (0, 1),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1,),
    "q_lora_rank": (0,),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "qkv_bias": (False,),
    "quantization_config": ({},),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_local_base_freq": (),
    "rope_parameters": (),
    "rope_scaling": (),
    "routed_scaling_factor": (1,),
    "scale_embedding": (False,),
    "scoring_func": ("softmax",),
    "shared_intermediate_size": (0,),
    "sliding_window": (),
    "swiglu_limit": (),
    "topk_method": ("greedy",),
    "use_bias": (False,),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_qkv_bias": (False,),
    "use_routing_bias": (False,),
    "use_sliding_window": (False,),
}


class Settings:
    """`max_model_len`: that of --max-model-len. `defaults`: of keys that the file omits; a null is no omission."""

    def __init__(
        self, config: Mapping[str, Any], max_model_len: int | None = None, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.max_model_len = max_model_len
        self._config = config
        self._defaults = defaults or {}
        self._read: set[str] = set()

    def raw(self, name: str) -> Any:
        """Returns the value as it is; None if it is null, or omitted without a default."""
        self._read.add(name)
        return self._config[name] if name in self._config else self._defaults.get(name)

    def size(self, name: str, default: int | None = None) -> int:
        """Returns an integer from 1 to MAX_SIZE; `default` for null. Raises ModelError for another value, or none."""
        value = self.raw(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            found = "missing" if value is None else repr(value)
            raise ModelError(f"config.json: {name} is {found}, but must be an integer above 0")
        if value > MAX_SIZE:
            raise ModelError(f"config.json: {name} is above {MAX_SIZE}")
        return value

    def whole(self, name: str) -> int:
        """Returns an integer from 0 to MAX_SIZE. Raises ModelError for another value, or none."""
        value = self.raw(name)
        if value == 0 and not isinstance(value, bool):
            return 0
        if isinstance(value, int) and value < 0:
            raise ModelError(f"config.json: {name} is {value}, but must be an integer of at least 0")
        return self.size(name)

    def spelling(self, *names: str) -> str:
        """Returns the one of several names of one key that the file has; the first if it has none. Raises ModelError if
        it has two with different values."""
        self._read.update(names)
        found = {name: self._config[name] for name in names if self._config.get(name) is not None}
        if len({*map(repr, found.values())}) > 1:
            raise ModelError(f"config.json: {', but '.join(f'{name} is {found[name]!r}' for name in found)}")
        return next(iter(found), names[0])

    def must_be(self, name: str, *allowed: Any) -> None:
        """Raises ModelError for a value that is neither null nor one of these."""
        value = self.raw(name)
        if value is not None and not any(_same(value, one) for one in allowed):
            raise ModelError(f"config.json: {name} = {value!r} is not supported for this architecture")

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number above 0; `default` for null. Raises ModelError for another value, or none."""
        return positive(self.raw(name), name, default)

    def flag(self, name: str) -> bool:
        """Returns a boolean; False for null. Raises ModelError for another value."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise ModelError(f"config.json: {name} is {value!r}, but must be true or false")
        return bool(value)

    def object(self, name: str) -> dict[str, Any]:
        """Returns an object; for null the default, or an empty one. Raises ModelError for another value."""
        value = self.raw(name)
        if value is None:
            value = self._defaults.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"config.json: {name} is {value!r}, but must be an object")
        return dict(value or {})

    def activation(self, name: str = "hidden_act") -> str:
        """Returns the activation as kernels.program names it. Raises ModelError for one that is not supported."""
        value = self.raw(name)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(f"config.json: {name} = {value!r} is not supported, only {sorted(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def dtype(self) -> str:
        """Returns the dtype of the checkpoint's tensors, "float32" if it is not said."""
        return str(self.raw("dtype") or self.raw("torch_dtype") or "float32")

    def refuse_rest(self) -> None:
        """Raises ModelError for a trait that was not read and that asks for something."""
        for name, neutral in TRAITS.items():
            value = self._config.get(name)
            if name in self._read or value is None or any(_same(value, one) for one in neutral):
                continue
            if name == "layer_types" and isinstance(value, list) and all(one == FULL_ATTENTION for one in value):
                continue
            raise ModelError(f"config.json: {name} = {value!r} is not supported for this architecture")


def _same(value: Any, neutral: Any) -> bool:
    """Whether they are equal; true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def positive(value: Any, name: str, default: float | None = None) -> float:
    """Returns a number within NUMBERS; `default` for None. Raises ModelError with the key's name."""
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        found = "missing" if value is None else repr(value)
        raise ModelError(f"config.json: {name} is {found}, but must be a number above 0")
    least, most = NUMBERS
    if not least <= value <= most:
        raise ModelError(f"config.json: {name} is not between {least} and {most}")
    return float(value)
