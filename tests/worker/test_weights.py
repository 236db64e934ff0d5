"""Source tensors: random ones by seed, tensors that do not match the model, and the progress in the log."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.options.declarations import WorkerOptions
from services.worker import weights
from services.worker.errors import ModelError
from services.worker.loading import load_model
from tests.worker.checkpoint_files import change_weights, load
from tests.worker.models.truth import log_probs, own_log_probs


def test_dummy_weights_need_no_files_and_follow_the_seed(path: Path) -> None:
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights to load.*--load-format dummy"):
        load(path)
    first, again, other = (load(path, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "1 tensors are missing.*model.norm.weight"),
        (lambda tensors: tensors.update({"surprise": torch.zeros(1)}), "unexpected tensor surprise"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight has shape \[3\], config.json says \[64\]",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            "model.norm.weight is int8, which is not supported",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(64).to(torch.float8_e4m3fn)}),
            "model.norm.weight is float8_e4m3fn, which is not supported",
        ),
    ],
)
def test_tensors_that_do_not_match_the_model_are_named(path: Path, change: Any, message: str) -> None:
    change_weights(path, change)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_a_shard_that_cannot_be_read_is_named(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="the weight file .*/model.safetensors is not whole: "):
        load(path)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_of_its_own_is_used_though_the_head_is_tied(
    path: Path, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As in transformers 5; a head that equals the embedding stays tied."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))

    def change(tensors: dict[str, torch.Tensor]) -> None:
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = embedding.clone() if same else embedding.flip(0).contiguous()

    change_weights(path, change)
    decoder = load_model(path, WorkerOptions(model=str(path), device="cpu", dtype="float32")).decoder
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert decoder.description.tied is same
    assert (own_log_probs(decoder, [5, 6, 7]) - log_probs(model, [5, 6, 7])).abs().max() < 1e-4
    assert ("the files have a head of their own" in caplog.text) is not same


def test_a_slow_load_shows_its_progress(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "PROGRESS_SECONDS", 0.0)
    with caplog.at_level("INFO"):
        load_model(path, WorkerOptions(model=str(path)))
    percents = [
        int(record.getMessage().split("%")[0].split()[-1]) for record in caplog.records if "% of" in record.message
    ]
    assert len(percents) > 5 and percents == sorted(percents)
    assert 90 <= percents[-1] <= 100
