"""A device that compiles is tried before its KV cache is sized, and what that took is kept free; on a CPU here."""

import itertools
from pathlib import Path

import pytest
import torch

from engine_core.worker_messages import EngineLimits
from kernels.gpu.ops import TritonOps
from services.config import WorkerOptions
from services.worker.building import build_runner, tried_bytes
from services.worker.errors import ModelError
from services.worker.loading import LoadedModel, load_model
from services.worker.phases import Phases
from tests.checkpoints import make_qwen3
from tests.worker.replays import Replays

SHAPE = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 1, "vocab_size": 50}
LIMITS = EngineLimits(1, max_num_seqs=4, max_num_batched_tokens=8)
MB = 10**6


class Meter(Replays):
    """Says what it was told to; everything runs."""

    compiles = True

    def __init__(self, *taken: int) -> None:
        super().__init__(graph_sizes=(1, 2, 4, 8))
        self._taken = itertools.chain(taken, itertools.repeat(taken[-1]))

    def taken_bytes(self) -> int:
        return next(self._taken)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_qwen3(tmp_path_factory.mktemp("model"), **SHAPE)
    return load_model(path, options(path), TritonOps())


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(model=str(path), device="cpu", dtype="float32", block_size=4, max_model_len=24)


def test_each_graph_that_is_recorded_later_counts_as_the_second(model: LoadedModel) -> None:
    """Sizes 4 (as many as there are slots), 2 and 1."""
    wanted = options(model.checkpoint.path)
    device = Meter(1000, 8000, 8300)
    assert tried_bytes(model.decoder, wanted, LIMITS, device) == 7000 + 2 * 300
    assert device.num_records == 2


def test_the_larger_of_tried_and_computed_is_kept_free(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    kept = []
    for taken in (0, 700 * MB):
        with caplog.at_level("INFO"):
            caplog.clear()
            phases = Phases()
            build_runner(model, options(model.checkpoint.path), LIMITS, phases, Meter(0, taken))
        kept.append(next(text for text in caplog.messages if text.startswith("memory:")))
        assert "first steps" in str(phases)
    assert "the largest step 0.10 GB" in kept[0] and "the largest step 0.70 GB" in kept[1]


def test_a_step_that_runs_out_of_memory_is_refused(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(model.decoder, "forward", fail)
    with pytest.raises(ModelError, match="--max-num-batched-tokens 8 and --max-num-seqs 4 does not fit beside the"):
        build_runner(model, options(model.checkpoint.path), LIMITS, Phases(), Meter(0))
