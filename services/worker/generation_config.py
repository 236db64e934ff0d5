"""generation_config.json: the model's defaults for sampling parameters, with --override-generation-config applied."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_core.request_check import ABOVE_LOW, SAMPLING_RANGES
from engine_core.worker_messages import SamplingDefaults
from services.worker.errors import ModelError

FILE, OPTION = "generation_config.json", "--override-generation-config"
# Its keys that are defaults of sampling parameters, and the parameters' names.
PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
KEYS = (*PARAMETERS, "do_sample", "eos_token_id")
ALL_TOKENS = -1  # top_k, as in vLLM


@dataclass(frozen=True)
class GenerationConfig:
    """`values`: the file's content, empty without a file. `overrides`: keys that replace them; null removes one.

    Raises ModelError for an override without effect here, or with a value that no request may have.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in self.overrides.items():
            if key not in KEYS:
                raise ModelError(f"{OPTION}: {key} is not supported, only {', '.join(KEYS)}")
            if value is not None:
                _check_override(key, value)

    @property
    def merged(self) -> dict[str, Any]:
        return {**self.values, **self.overrides}

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Defaults of the sampling parameters.

        `do_sample: false` gives temperature 0 (greedy), as in transformers' generate(), unless the temperature is
        overridden. Raises ModelError for a value that is not a number, or far from any range.
        """
        merged = self.merged
        found = {param: merged[key] for key, param in PARAMETERS.items() if merged.get(key) is not None}
        for key, param in PARAMETERS.items():
            value = found.get(param, 0)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ModelError(f"{FILE}: {key} is {value!r}, but must be a number")
        if merged.get("do_sample") is False and ("do_sample" in self.overrides or "temperature" not in self.overrides):
            found["temperature"] = 0.0
        try:
            return SamplingDefaults(**found)
        except ValueError as error:
            raise ModelError(f"{FILE}: {error}") from error

    def summary(self) -> str:
        """Returns a line with the sampling defaults that are not OpenAI's; empty if there are none."""
        defaults, openai = self.sampling_defaults, SamplingDefaults()
        changed = {name: getattr(defaults, name) for name in PARAMETERS.values()}
        changed = {name: value for name, value in changed.items() if value != getattr(openai, name)}
        if not changed:
            return ""
        sources = [FILE] * bool(self.values) + [OPTION] * bool(self.overrides)
        values = ", ".join(f"{name} {value:g}" for name, value in changed.items())
        hint = "; --generation-config vllm uses the OpenAI API's defaults" if self.values else ""
        return f"sampling defaults of {' and '.join(sources)}: {values}{hint}"


def _check_override(key: str, value: Any) -> None:
    """Raises ModelError for a value that is of the wrong type or outside the range of requests."""
    if key == "eos_token_id":
        return  # checked against the vocabulary: Checkpoint.eos_token_ids
    if key == "do_sample":
        if not isinstance(value, bool):
            raise ModelError(f"{OPTION}: do_sample is {json.dumps(value)}, but must be true or false")
        return
    integral = key in ("top_k", "max_new_tokens")
    if isinstance(value, bool) or not isinstance(value, int if integral else int | float):
        kind = "an integer" if integral else "a number"
        raise ModelError(f"{OPTION}: {key} is {json.dumps(value)}, but must be {kind}")
    low, high = SAMPLING_RANGES[PARAMETERS[key]]
    above = key in ABOVE_LOW
    if not (low < value if above else low <= value) or not value <= high:
        if (key, value) == ("top_k", ALL_TOKENS):
            return
        start = f"above {low:g}" if above else f"at least {low:g}"
        raise ModelError(f"{OPTION}: {key} is {value:g}, but must be {start} and at most {high:g}")
