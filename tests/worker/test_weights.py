"""Source tensors: random ones by seed, tensors that do not match the model, and the progress in the log."""

from pathlib import Path
from typing import Any

import pytest
import torch

from services.options.declarations import WorkerOptions
from services.worker import weights
from services.worker.errors import ModelError
from services.worker.loading import load_model
from tests.worker.checkpoint_files import change_weights, load


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
    ],
)
def test_tensors_that_do_not_match_the_model_are_named(path: Path, change: Any, message: str) -> None:
    change_weights(path, change)
    with pytest.raises(ModelError, match=message):
        load(path)


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
