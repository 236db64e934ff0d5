"""A device that compiles is tried before its KV cache is sized, and what that took is kept free; on a CPU here."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core.worker_messages import BatchLimits
from kernels.gpu import attention, attention_tiling
from kernels.gpu.attention import attend
from kernels.gpu.ops import TritonOps
from services.options.declarations import WorkerOptions
from services.worker.building import build_runner, profiled_peak_bytes
from services.worker.errors import ModelError
from services.worker.loading import LoadedModel, load_model
from services.worker.phases import Phases
from tests.checkpoints import make_qwen3
from tests.worker.fake_graph_device import FakeGraphDevice

SHAPE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 1, "vocab_size": 50}
LIMITS = BatchLimits(1, max_num_seqs=8, max_num_batched_tokens=8)
MB = 10**6


class Meter(FakeGraphDevice):
    """Says what it was told to; everything runs."""

    compiles = True

    def __init__(self, *taken: int) -> None:
        super().__init__(graph_sizes=range(1, 9))
        self._taken = itertools.chain(taken, itertools.repeat(taken[-1]))

    def used_bytes(self) -> int:
        return next(self._taken)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_qwen3(tmp_path_factory.mktemp("model"), **SHAPE)
    return load_model(path, options(path), TritonOps())


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(model=str(path), device="cpu", dtype="float32", block_size=4, max_model_len=24)


def test_each_graph_that_is_recorded_later_counts_as_the_last_ones_tried(model: LoadedModel) -> None:
    """Of eight sizes, 8, 4, 2 and 1 are tried; 7, 6 and 5 after them; 3 is not."""
    wanted = options(model.checkpoint.path)
    device = Meter(1000, 8000, 8300)
    assert profiled_peak_bytes(model.decoder, wanted, LIMITS, device) == 7000 + 4 * 100
    assert device.num_captures == 7


def test_the_larger_of_tried_and_computed_is_kept_free(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    kept = []
    for taken in (0, 700 * MB):
        with caplog.at_level("INFO"):
            caplog.clear()
            phases = Phases()
            build_runner(model, options(model.checkpoint.path), LIMITS, phases, Meter(0, taken))
        kept.append(next(text for text in caplog.messages if text.startswith("memory:")))
        assert "profile run" in str(phases)
    assert "peak of a step 0.11 GB" in kept[0] and "peak of a step 0.70 GB" in kept[1]


def test_a_step_that_runs_out_of_memory_is_refused(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(model.decoder, "forward", fail)
    with pytest.raises(ModelError, match="--max-num-batched-tokens 8 and --max-num-seqs 8 does not fit into memory"):
        build_runner(model, options(model.checkpoint.path), LIMITS, Phases(), Meter(0))


def test_no_step_is_tried_that_is_longer_than_the_model(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions would be read behind the end of the rope table."""
    monkeypatch.setattr(model.decoder, "forward", lambda *args: pytest.fail("a step was tried"))
    wanted = replace(options(model.checkpoint.path), max_model_len=10**6)
    with pytest.raises(ModelError, match="--max-model-len 1000000 is above the model's max_position_embeddings"):
        build_runner(model, wanted, LIMITS, Phases(), Meter(0))


def test_what_a_step_may_launch_was_launched_by_the_trial(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention: prompts of several requests and tokens, of few; decode in parts and whole."""
    launched = set()

    def note(*args: Any) -> torch.Tensor:
        launched.add((args[6] == 1, args[-1] > 1))  # of one token each; in several parts
        return attend(*args)

    monkeypatch.setattr(attention, "attend", note)
    monkeypatch.setattr(attention_tiling, "PROGRAMS", 8)  # so that eight requests fill the device
    profiled_peak_bytes(model.decoder, options(model.checkpoint.path), LIMITS, Meter(0))
    assert launched == {(False, False), (True, False), (True, True)}
