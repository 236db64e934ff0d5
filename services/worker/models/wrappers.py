"""Checkpoints that wrap a text model of a family here, in text_config, together with what sees or hears.

Only the text model is served. The tensors of all else are skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.worker.errors import ModelError
from services.worker.models.description import Names

# The hub's spelling, and that of transformers 5.
RENAMED = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
)
PARTS = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.", "image_newline")
SKIPPED = (*PARTS, *(f"model.{part}" for part in PARTS))
FROM_WRAPPER = ("dtype", "torch_dtype", "quantization_config")  # taken from there if the wrapper has the key


@dataclass(frozen=True)
class Wrapper:
    """`model_type` of the text model, and whether its head is tied, where config.json does not say."""

    model_type: str
    tied: bool = False


WRAPPERS = {
    "Gemma3ForConditionalGeneration": Wrapper("gemma3_text", tied=True),
    "Idefics3ForConditionalGeneration": Wrapper("llama"),
    "InternVLForConditionalGeneration": Wrapper("qwen2", tied=True),
    "LlavaForConditionalGeneration": Wrapper("llama"),
    "LlavaNextForConditionalGeneration": Wrapper("llama"),
    "LlavaOnevisionForConditionalGeneration": Wrapper("qwen2"),
    "Mistral3ForConditionalGeneration": Wrapper("mistral", tied=True),
    "SmolVLMForConditionalGeneration": Wrapper("llama"),
    "VipLlavaForConditionalGeneration": Wrapper("llama"),
}


def text_config(config: Mapping[str, Any], wrapper: Wrapper) -> dict[str, Any]:
    """Returns the configuration of the text model, with its model_type. Raises ModelError if it is not an object."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise ModelError(f"config.json: text_config is {text!r}, but must be an object")
    given = [each["tie_word_embeddings"] for each in (config, text) if each.get("tie_word_embeddings") is not None]
    tied = next((value for value in given if value is not False), False) if given else wrapper.tied
    merged = {"model_type": wrapper.model_type, **text, "tie_word_embeddings": tied}
    return merged | {key: config[key] for key in FROM_WRAPPER if config.get(key) is not None}


def wrapped(names: Names) -> Names:
    """Returns a family's names with the spellings of a wrapper, and with what is skipped."""
    return replace(names, renamed=RENAMED, skipped=(*names.skipped, *SKIPPED))
