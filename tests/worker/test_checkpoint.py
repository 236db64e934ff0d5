"""Checkpoints as they come from the hub: shards, overrides, generation defaults, digests; one clear line per defect."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.checkpoint import read_checkpoint
from services.worker.errors import ModelError
from services.worker.models.describe import describe
from tests.checkpoints import make_qwen3
from tests.worker.checkpoint_files import load


def test_shards_give_what_one_file_gives(path: Path, tmp_path: Path) -> None:
    sharded = make_qwen3(tmp_path / "sharded", seed=1, shard_size="200KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    whole = load(path)
    for name, tensor in load(sharded).items():
        assert torch.equal(tensor, whole[name]), name


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded = make_qwen3(tmp_path / "sharded", seed=1, shard_size="200KB")
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"lacks weight files that model.safetensors.index.json names: {gone.name}"):
        load(sharded)


def test_overrides_win_over_the_file(path: Path) -> None:
    checkpoint = read_checkpoint(path, {"max_position_embeddings": 99}, "auto")
    assert describe(checkpoint.config).max_length == 99


def test_generation_defaults_come_from_the_checkpoint_or_not_at_all(path: Path, tmp_path: Path) -> None:
    (path / "generation_config.json").write_text(
        json.dumps({"temperature": 0.6, "top_k": 20, "eos_token_id": [2, 0], "max_new_tokens": 9})
    )
    own = read_checkpoint(path, {}, "auto")
    assert (own.sampling_defaults.temperature, own.sampling_defaults.top_k, own.sampling_defaults.max_tokens) == (
        0.6,
        20,
        9,
    )
    assert own.eos_token_ids(10) == (2, 0)
    plain = read_checkpoint(path, {}, "vllm")
    assert (plain.sampling_defaults.temperature, plain.eos_token_ids(10)) == (1.0, (2,))
    assert read_checkpoint(path, {}, "auto", {"eos_token_id": None}).eos_token_ids(10) == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    assert read_checkpoint(path, {}, str(tmp_path)).sampling_defaults.temperature == 0.0
    with pytest.raises(ModelError, match="--generation-config"):
        read_checkpoint(path, {}, str(tmp_path / "nowhere"))


@pytest.mark.parametrize("eos", [99999, -1, [2, 99999], "2", [None], True])
def test_an_end_token_outside_the_vocabulary_is_refused(path: Path, eos: Any) -> None:
    """Under min_tokens it would be masked at an index outside the logits."""
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ModelError, match="is not a token of the vocabulary of 10"):
        read_checkpoint(path, {}, "auto").eos_token_ids(10)


def test_a_default_that_is_no_number_is_refused(path: Path) -> None:
    (path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(ModelError, match="temperature is 'hot', but must be a number"):
        _ = read_checkpoint(path, {}, "auto").sampling_defaults


def test_an_override_wins_over_the_generation_config_and_can_be_all_there_is(path: Path) -> None:
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20, "eos_token_id": 2}))
    overrides = {"temperature": 0.3, "eos_token_id": [4]}
    own = read_checkpoint(path, {}, "auto", overrides)
    assert (own.sampling_defaults.temperature, own.sampling_defaults.top_k, own.eos_token_ids(10)) == (0.3, 20, (4,))
    alone = read_checkpoint(path, {}, "vllm", overrides)
    assert (alone.sampling_defaults.temperature, alone.sampling_defaults.top_k) == (0.3, 0)
    with pytest.raises(ModelError, match="eos_token_id 99 is not a token of the vocabulary of 10"):
        read_checkpoint(path, {}, "auto", {"eos_token_id": 99}).eos_token_ids(10)


@pytest.mark.parametrize("index", [{}, {"weight_map": 5}, {"weight_map": {"a": 5}}])
def test_an_index_without_file_names_is_refused(path: Path, index: Any) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="has no weight_map of file names"):
        read_checkpoint(path, {}, "auto").weight_files()


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "..", ""])
def test_an_index_that_leaves_its_directory_is_refused(path: Path, name: str) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelError, match=re.escape(f"names a file outside its directory: {name!r}")):
        read_checkpoint(path, {}, "auto").weight_files()


def test_deep_nesting_is_no_crash(path: Path) -> None:
    (path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match="cannot read .*config.json"):
        read_checkpoint(path, {}, "auto")
