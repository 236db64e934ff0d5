"""Turns config.json into the description of a decoder, by its architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.worker.errors import ModelError
from services.worker.models.description import Description
from services.worker.models.families import (
    cohere,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from services.worker.models.settings import Settings
from services.worker.models.wrappers import WRAPPERS, Wrapper, text_config, wrapped


@dataclass(frozen=True)
class Family:
    """`model_type`: in config.json. `defaults`: of keys that it omits."""

    model_type: str
    defaults: Mapping[str, Any]
    describe: Callable[[Settings], Description]


FAMILIES = {
    "CohereForCausalLM": Family("cohere", cohere.DEFAULTS, cohere.describe),
    "GraniteForCausalLM": Family("granite", granite.DEFAULTS, granite.describe),
    "LlamaForCausalLM": Family("llama", llama.DEFAULTS, llama.describe),
    "Ministral3ForCausalLM": Family("ministral3", mistral.MINISTRAL_3_DEFAULTS, mistral.describe),
    "MistralForCausalLM": Family("mistral", mistral.DEFAULTS, mistral.describe),
    "Olmo2ForCausalLM": Family("olmo2", olmo2.DEFAULTS, olmo2.describe),
    "Phi3ForCausalLM": Family("phi3", phi3.DEFAULTS, phi3.describe),
    "Qwen2ForCausalLM": Family("qwen2", qwen2.DEFAULTS, qwen2.describe),
    "Qwen3ForCausalLM": Family("qwen3", qwen3.DEFAULTS, qwen3.describe),
    "SeedOssForCausalLM": Family("seed_oss", seed_oss.DEFAULTS, seed_oss.describe),
    "SmolLM3ForCausalLM": Family("smollm3", smollm3.DEFAULTS, smollm3.describe),
    "StableLmForCausalLM": Family("stablelm", stablelm.DEFAULTS, stablelm.describe),
    "Starcoder2ForCausalLM": Family("starcoder2", starcoder2.DEFAULTS, starcoder2.describe),
}


BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}


def describe(config: Mapping[str, Any], max_model_len: int | None = None) -> Description:
    """Returns the description of the decoder in a config.json. `max_model_len`: that of --max-model-len.

    Raises ModelError for an unsupported architecture, setting or size.
    """
    architectures = config.get("architectures") or []
    for name in architectures if isinstance(architectures, list) else []:
        if isinstance(name, str) and name in FAMILIES:
            return _described(FAMILIES[name], config, max_model_len)
        if isinstance(name, str) and name in WRAPPERS:
            return _text_of(WRAPPERS[name], config, max_model_len)
    raise ModelError(
        f"config.json: architectures {architectures} are not supported, only {sorted({*FAMILIES, *WRAPPERS})}"
    )


def _described(family: Family, config: Mapping[str, Any], max_model_len: int | None) -> Description:
    settings = Settings(config, max_model_len).with_defaults(family.defaults)
    found = family.describe(settings)
    settings.refuse_rest()
    return found


def _text_of(wrapper: Wrapper, config: Mapping[str, Any], max_model_len: int | None) -> Description:
    """Returns the description of a wrapper's text model."""
    text = text_config(config, wrapper)
    name = text["model_type"]
    if not isinstance(name, str) or name not in BY_MODEL_TYPE:
        raise ModelError(f"config.json: text_config.model_type {name!r} is not supported, only {sorted(BY_MODEL_TYPE)}")
    try:
        found = _described(BY_MODEL_TYPE[name], text, max_model_len)
    except ModelError as error:
        raise ModelError(f"{error} (in text_config)") from error
    return replace(found, names=wrapped(found.names))
