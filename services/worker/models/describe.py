"""Turns config.json into the description of a decoder, by its architecture."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from services.worker.errors import ModelError
from services.worker.models.description import Description
from services.worker.models.families import (
    cohere,
    cohere2,
    exaone4,
    gemma2,
    gemma3,
    glm4_moe,
    gpt_oss,
    granite,
    granitemoe,
    llama,
    minimax_m2,
    ministral3,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from services.worker.models.settings import Settings
from services.worker.models.wrappers import WRAPPERS, Wrapper, text_config, wrapped


class FamilyModule(Protocol):
    """A file of families/. `DEFAULTS`: of keys that config.json omits."""

    @property
    def DEFAULTS(self) -> Mapping[str, Any]: ...

    def describe(self, settings: Settings) -> Description: ...


@dataclass(frozen=True)
class Family:
    """`model_type`: in config.json."""

    model_type: str
    module: FamilyModule


FAMILIES = {
    "CohereForCausalLM": Family("cohere", cohere),
    "Cohere2ForCausalLM": Family("cohere2", cohere2),
    "Exaone4ForCausalLM": Family("exaone4", exaone4),
    "Gemma2ForCausalLM": Family("gemma2", gemma2),
    "Gemma3ForCausalLM": Family("gemma3_text", gemma3),
    "Glm4MoeForCausalLM": Family("glm4_moe", glm4_moe),
    "GptOssForCausalLM": Family("gpt_oss", gpt_oss),
    "GraniteForCausalLM": Family("granite", granite),
    "GraniteMoeForCausalLM": Family("granitemoe", granitemoe),
    "LlamaForCausalLM": Family("llama", llama),
    "MiniMaxM2ForCausalLM": Family("minimax_m2", minimax_m2),
    "Ministral3ForCausalLM": Family("ministral3", ministral3),
    "MistralForCausalLM": Family("mistral", mistral),
    "MixtralForCausalLM": Family("mixtral", mixtral),
    "Olmo2ForCausalLM": Family("olmo2", olmo2),
    "Olmo3ForCausalLM": Family("olmo3", olmo3),
    "Phi3ForCausalLM": Family("phi3", phi3),
    "Qwen2ForCausalLM": Family("qwen2", qwen2),
    "Qwen3ForCausalLM": Family("qwen3", qwen3),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", qwen3_moe),
    "SeedOssForCausalLM": Family("seed_oss", seed_oss),
    "SmolLM3ForCausalLM": Family("smollm3", smollm3),
    "StableLmForCausalLM": Family("stablelm", stablelm),
    "Starcoder2ForCausalLM": Family("starcoder2", starcoder2),
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
    settings = Settings(config, max_model_len, family.module.DEFAULTS)
    found = family.module.describe(settings)
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
