"""The profile run of a device that compiles kernels: its peak is kept free when the KV cache is sized."""

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


class MeteredDevice(FakeGraphDevice):
    """A device that reports the given values as its used memory, one after the other."""

    compiles = True

    def __init__(self, *used: int) -> None:
        super().__init__(graph_sizes=range(1, 9))
        self._used = itertools.chain(used, itertools.repeat(used[-1]))

    def used_bytes(self) -> int:
        return next(self._used)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = make_qwen3(tmp_path_factory.mktemp("model"), **SHAPE)
    return load_model(path, options(path), TritonOps())


def options(path: Path) -> WorkerOptions:
    return WorkerOptions(model=str(path), device="cpu", dtype="float32", block_size=4, max_model_len=24)


def test_each_missing_graph_counts_as_the_measured_ones(model: LoadedModel) -> None:
    """Of eight sizes, the profile run captures 8, 4, 2 and 1; 7, 6 and 5 are measured; 3 is estimated."""
    device = MeteredDevice(1000, 8000, 8300)
    peak = profiled_peak_bytes(model.decoder, options(model.checkpoint.path), LIMITS, device)
    assert peak == 7000 + 4 * 100
    assert device.num_captures == 7


def test_the_larger_of_profiled_and_computed_peak_is_kept_free(
    model: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    kept = []
    for used in (0, 700 * MB):
        with caplog.at_level("INFO"):
            caplog.clear()
            phases = Phases()
            build_runner(model, options(model.checkpoint.path), LIMITS, phases, MeteredDevice(0, used))
        kept.append(next(text for text in caplog.messages if text.startswith("memory:")))
        assert "profile run" in str(phases)
    assert "peak of a step 0.12 GB" in kept[0] and "peak of a step 0.70 GB" in kept[1]


def test_a_step_that_runs_out_of_memory_is_refused(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(model.decoder, "forward", fail)
    with pytest.raises(ModelError, match="--max-num-batched-tokens 8 and --max-num-seqs 8 does not fit into memory"):
        build_runner(model, options(model.checkpoint.path), LIMITS, Phases(), MeteredDevice(0))


def test_the_profile_run_is_no_longer_than_the_model(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer positions would be read past the end of the rope table."""
    monkeypatch.setattr(model.decoder, "forward", lambda *args: pytest.fail("a step ran"))
    too_long = replace(options(model.checkpoint.path), max_model_len=10**6)
    with pytest.raises(ModelError, match="--max-model-len 1000000 is above the model's 512 positions"):
        build_runner(model, too_long, LIMITS, Phases(), MeteredDevice(0))


def test_the_profile_run_launches_every_variant_of_attention(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill, and decode with and without KV splits."""
    launched = set()

    def note(*args: Any) -> torch.Tensor:
        num_decodes, max_query_len = args[6:8]
        launched.add((max_query_len == 1, num_decodes > 0 and args[-1] > 1))  # (decode, with KV splits)
        return attend(*args)

    monkeypatch.setattr(attention, "attend", note)
    monkeypatch.setattr(attention_tiling, "PROGRAMS", 8)  # eight requests need no KV splits
    profiled_peak_bytes(model.decoder, options(model.checkpoint.path), LIMITS, MeteredDevice(0))
    assert launched == {(False, False), (True, False), (True, True)}
