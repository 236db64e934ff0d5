"""Checkpoints of models that see: their text model answers as transformers does, and all else is skipped."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from services.options.declarations import WorkerOptions
from services.worker.checkpoint import read_checkpoint
from services.worker.errors import ModelError
from services.worker.loading import load_model
from services.worker.models.describe import describe
from services.worker.models.wrappers import WRAPPERS
from tests.worker.checkpoint_files import change_config, change_weights, load
from tests.worker.models.parity_cases import BASE, MINISTRAL_3, spread
from tests.worker.models.truth import TOLERANCE, log_probs, own_log_probs

SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 16,
}  # fmt: skip
# (model type of the wrapper, of its text model with more of its keys, of what sees)
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Gemma3ForConditionalGeneration": (
        "gemma3",
        {"model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 20, "sliding_window_pattern": 2},
        {"model_type": "siglip_vision_model"},
    ),
    "Idefics3ForConditionalGeneration": ("idefics3", {"model_type": "llama"}, {}),
    "InternVLForConditionalGeneration": (
        "internvl",
        {"model_type": "qwen2"},
        {"model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [16, 16]},
    ),
    "LlavaForConditionalGeneration": (
        "llava", {"model_type": "llama", "tie_word_embeddings": True}, {"model_type": "clip_vision_model"},
    ),
    "LlavaNextForConditionalGeneration": ("llava_next", {"model_type": "mistral"}, {"model_type": "clip_vision_model"}),
    "LlavaOnevisionForConditionalGeneration": (
        "llava_onevision", {"model_type": "qwen2"}, {"model_type": "siglip_vision_model"},
    ),
    "Mistral3ForConditionalGeneration": (
        "mistral3",
        {"model_type": "ministral3", "head_dim": 80, "rope_parameters": MINISTRAL_3, "sliding_window": None},
        {"model_type": "pixtral", "head_dim": 16},
    ),
    "SmolVLMForConditionalGeneration": ("smolvlm", {"model_type": "llama", "head_dim": 80}, {}),
    "VipLlavaForConditionalGeneration": ("vipllava", {"model_type": "llama"}, {"model_type": "clip_vision_model"}),
}  # fmt: skip
PROMPT = [token_id % BASE["vocab_size"] for token_id in range(3, 3000, 71)]


def save(
    path: Path, architecture: str = "LlavaForConditionalGeneration", as_on_the_hub: bool = True
) -> torch.nn.Module:
    """Writes a checkpoint with random weights. Returns transformers' model."""
    kind, text, seeing = MODELS[architecture]
    layers = {"vision_feature_layer": -1} if kind == "vipllava" else {}
    config = AutoConfig.for_model(
        kind, text_config={**BASE, **text}, vision_config={**SMALL, **seeing}, pad_token_id=None, **layers
    )
    model = AutoModelForImageTextToText.from_config(config).eval()
    assert type(model).__name__ == architecture
    spread(model, 7)
    model.save_pretrained(path, save_original_format=as_on_the_hub)
    return model


@pytest.mark.parametrize("as_on_the_hub", [True, False], ids=["hub's names", "transformers 5's names"])
@pytest.mark.parametrize("architecture", WRAPPERS)
def test_the_text_model_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str, as_on_the_hub: bool
) -> None:
    model = save(tmp_path, architecture, as_on_the_hub)
    with caplog.at_level("INFO"):
        decoder = load_model(tmp_path, WorkerOptions(model=str(tmp_path), device="cpu", max_model_len=256)).decoder
    lines = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(lines) == 1 and "tensors that text does not need" in lines[0]
    assert (own_log_probs(decoder, PROMPT) - log_probs(model, PROMPT)).abs().max() <= 5 * TOLERANCE


def test_mistral3_with_a_head_in_the_file_is_not_tied(tmp_path: Path) -> None:
    """As published: neither config.json nor text_config has tie_word_embeddings."""
    save(tmp_path, "Mistral3ForConditionalGeneration")
    config = json.loads((tmp_path / "config.json").read_text())
    for holder in (config, config["text_config"]):
        holder.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = WorkerOptions(model=str(tmp_path), device="cpu", max_model_len=256)
    assert load_model(tmp_path, options).decoder.description.tied
    head = torch.randn(BASE["vocab_size"], BASE["hidden_size"], generator=torch.Generator().manual_seed(0))
    change_weights(tmp_path, lambda tensors: tensors.update({"language_model.lm_head.weight": head}))
    decoder = load_model(tmp_path, options).decoder
    assert not decoder.description.tied
    assert torch.allclose(decoder.logits(torch.eye(BASE["hidden_size"])), head.T)


def test_a_missing_head_is_told(tmp_path: Path) -> None:
    save(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    change_config(tmp_path, text_config={**text, "tie_word_embeddings": False})
    change_weights(tmp_path, lambda tensors: tensors.pop("language_model.lm_head.weight", None))
    with pytest.raises(ModelError, match="missing from the checkpoint, among them lm_head.weight"):
        load(tmp_path)


def test_end_tokens_and_dtype_may_be_in_either_place(tmp_path: Path) -> None:
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("eos_token_id", None)
    config |= {"dtype": "bfloat16", "text_config": {**config["text_config"], "eos_token_id": [3, 4]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert read_checkpoint(tmp_path, {}, "auto").eos_token_ids(200) == (3, 4)
    assert describe(config).dtype == "bfloat16"
    change_config(tmp_path, eos_token_id=5)
    assert read_checkpoint(tmp_path, {}, "auto").eos_token_ids(200) == (5,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Llama4ForConditionalGeneration"]}, "Llama4ForConditionalGeneration.*are not supported"),
        ({"text_config": None}, "text_config is None, but must be an object"),
        ({"text_config": {"model_type": "gemma3n_text"}}, "text_config.model_type 'gemma3n_text' is not supported"),
        ({"text_config": {"model_type": []}}, r"text_config.model_type \[\] is not supported"),
        ({"text_config": {"hidden_size": -1}}, r"hidden_size is -1, but must be .*\(in text_config\)"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config = .*fp8"),
        ({"tie_word_embeddings": 3}, "tie_word_embeddings is 3"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_other_tensors_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    change_weights(tmp_path, lambda tensors: tensors.update({"language_model.model.surprise": torch.zeros(1)}))
    with pytest.raises(ModelError, match="unexpected tensor language_model.model.surprise"):
        load(tmp_path)


def test_tensors_of_multi_token_prediction_are_skipped(path: Path) -> None:
    change_weights(path, lambda tensors: tensors.update({"mtp.layers.0.weight": torch.zeros(1)}))
    assert not any(name.startswith("mtp") for name in load(path))
    change_weights(path, lambda tensors: tensors.update({"vision_tower.weight": torch.zeros(1)}))
    with pytest.raises(ModelError, match="unexpected tensor vision_tower.weight"):
        load(path)
