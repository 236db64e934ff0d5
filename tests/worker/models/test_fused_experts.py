"""Experts load from one tensor each, and from tensors that hold those of a whole layer, with the same result."""

import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from services.options.declarations import WorkerOptions
from services.worker.errors import ModelError
from services.worker.loading import load_model
from services.worker.models.description import Fused, Names
from services.worker.models.fused_experts import split
from tests.worker.checkpoint_files import change_weights
from tests.worker.models.parity_cases import CASES
from tests.worker.models.truth import own_log_probs, prompts_of

MIXTURES = ("glm4-moe", "gpt-oss", "granitemoe", "minimax-m2", "mixtral", "qwen3-moe")


def names_in(path: Path) -> set[str]:
    with safe_open(path / "model.safetensors", framework="pt") as tensors:
        return set(tensors.keys())


@pytest.mark.parametrize("name", MIXTURES)
def test_the_hubs_spelling_and_that_of_transformers_5_mean_the_same(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = case.reference(case.save(tmp_path / "hub"))
    model.save_pretrained(tmp_path / "new", save_original_format=False)
    if name != "gpt-oss":
        assert names_in(tmp_path / "hub") != names_in(tmp_path / "new")
    decoders = [
        load_model(path, WorkerOptions(model=str(path), device="cpu", max_model_len=case.max_model_len)).decoder
        for path in (tmp_path / "hub", tmp_path / "new")
    ]
    (prompt,) = prompts_of(case, 1)
    assert torch.equal(*(own_log_probs(decoder, prompt) for decoder in decoders))


def test_parts_are_halves_or_take_turns_and_may_be_transposed() -> None:
    tensor = torch.arange(24.0).view(2, 3, 4)
    fused = Fused("mlp.experts.gate_up_proj", ("gate_proj.weight", "up_proj.weight"), transposed=True)
    for interleaved, gate in ((False, [[0, 4, 8], [1, 5, 9]]), (True, [[0, 4, 8], [2, 6, 10]])):
        names = Names(fused=(Fused(fused.name, fused.parts, True, interleaved),))
        found = dict(split("model.layers.3.mlp.experts.gate_up_proj", tensor, names))
        assert len(found) == 4
        assert found["model.layers.3.mlp.experts.0.gate_proj.weight"].tolist() == gate
        assert found["model.layers.3.mlp.experts.1.up_proj.weight"].shape == (2, 3)
    assert list(split("model.layers.3.mlp.gate.weight", tensor, names)) == [("model.layers.3.mlp.gate.weight", tensor)]


def test_a_fused_tensor_that_does_not_fit_is_refused_by_its_name(tmp_path: Path) -> None:
    path = CASES["gpt-oss"].save(tmp_path)
    name = "model.layers.0.mlp.experts.down_proj"
    change_weights(path, lambda tensors: tensors.update({name: tensors[name][:, :-1].contiguous()}))
    part = "model.layers.0.mlp.experts.0.down_proj.weight"
    message = f"{name} ({part}) has shape [64, 39], config.json says [64, 40]"
    with pytest.raises(ModelError, match=re.escape(message)):
        load_model(path, WorkerOptions(model=str(path), device="cpu", max_model_len=256))
