"""The computed peak of a step is an upper bound of the measured one; the memory plan, its log line and its errors."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine_core.kv_cache_size import KvCacheSize
from engine_core.worker_messages import BatchLimits
from kernels.torch_ops import TorchOps
from services.options.declarations import WorkerOptions
from services.worker import memory
from services.worker.building import build_runner
from services.worker.checkpoint import read_checkpoint
from services.worker.errors import ModelError
from services.worker.kv_cache import block_bytes
from services.worker.loading import load_model
from services.worker.memory import BASE_BYTES, Memory, check_fits, check_weights_fit, plan_memory, step_bytes
from services.worker.models.describe import describe
from services.worker.models.description import Description
from services.worker.models.kv_layout import kv_layout
from services.worker.models.rope import table_bytes
from services.worker.models.tensors import num_weight_bytes
from services.worker.phases import Phases
from tests.checkpoints import SMALL, make_qwen3

GB = 10**9
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "dtype": "bfloat16",
    **SMALL,
    "max_position_embeddings": 100_000,
}
LIMITS = BatchLimits(1, max_num_seqs=8, max_num_batched_tokens=256)
OPTIONS = WorkerOptions(device="cpu", max_model_len=512)
# By what is largest in the step: (configuration, requests, tokens, length, options).
STEPS: dict[str, tuple[dict[str, Any], int, int, int, list[str]]] = {
    "noise": ({"vocab_size": 100_000}, 100, 128, 256, []),
    "gate-and-up": ({"hidden_size": 512, "intermediate_size": 12_288}, 4, 1024, 1100, []),
    "gate-and-up, then noise": (
        {"hidden_size": 512, "intermediate_size": 12_288, "vocab_size": 100_000}, 128, 2048, 2100, [],
    ),
    "wide-heads": ({"num_attention_heads": 64, "head_dim": 128, "dtype": "float32"}, 4, 1024, 1100, []),
    "batch-state": ({}, 512, 512, 100_000, []),
    "scored prompts": ({"vocab_size": 100_000}, 16, 512, 600, []),
    "noise, torch": ({"vocab_size": 100_000}, 24, 128, 256, ["--no-batch-invariant"]),
    "experts": (
        {
            "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 512, "num_experts": 16, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "norm_topk_prob": True,
        },
        4, 2048, 2100, [],
    ),
    "scores, torch": ({"num_attention_heads": 64}, 4, 512, 4096, ["--no-batch-invariant"]),
    "gate-and-up, torch": ({"intermediate_size": 12_288}, 4, 1024, 1100, ["--no-batch-invariant"]),
}  # fmt: skip

PROFILED = ("noise", "gate-and-up", "gate-and-up, then noise", "batch-state")
LONG = (
    "batch-state",
    "experts",
    "gate-and-up",
    "gate-and-up, then noise",
    "wide-heads",
    "noise, torch",
    "gate-and-up, torch",
)  # marked `long`


def config_of(**changes: Any) -> Description:
    return describe({**MODEL, **changes})


def planned(options: WorkerOptions = OPTIONS, limits: BatchLimits = LIMITS, **changes: Any) -> Memory:
    config, dtype = config_of(**changes), torch.bfloat16
    step = step_bytes(config, dtype, TorchOps(), options, limits)
    return plan_memory(config, dtype, torch.device("cpu"), options, limits, step)


def peak(path: Path, name: str, *more: str) -> list[int]:
    changes, seqs, tokens, length, options = STEPS[name]
    (path / "config.json").write_text(json.dumps({**MODEL, **changes}))
    command = [sys.executable, "-m", "tests.worker.peak", str(path), str(seqs), str(tokens), str(length), *options]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [int(size) for size in done.stdout.split()]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in STEPS])
def test_a_step_takes_no_more_than_was_computed(tmp_path: Path, name: str) -> None:
    measured, computed = peak(tmp_path, name)
    assert measured <= computed, "a busy server could run out of memory"
    assert computed - BASE_BYTES <= 3 * measured, "the computed peak is much too large"
    if name in PROFILED:
        (profiled,) = peak(tmp_path, name, "--profile")
        assert 0.6 * measured <= profiled <= 1.6 * measured, "the profile run is unlike a busy server's step"


def test_the_cache_gets_a_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 8 * GB)
    found = planned()
    assert found.free == 8 * GB and found.budget == (8 * GB - found.step) // 2
    assert planned(replace(OPTIONS, kv_cache_memory_bytes=7 * GB)).budget == 7 * GB


def test_a_step_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: GB // 2)
    assert planned().budget > 0
    with pytest.raises(
        ModelError, match=r"--max-num-batched-tokens 4096 and --max-num-seqs 1024 .* leave 500000000 bytes free"
    ):
        planned(limits=BatchLimits(1, 1024, 4096), vocab_size=150_000)


def test_a_cache_that_does_not_fit_with_a_step_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_fits(Memory(weights=1, step=2 * GB, free=8 * GB, budget=0), 6 * GB)
    with pytest.raises(ModelError, match="KV cache would take 6000000001 bytes and a step .* lower --kv-cache-memory"):
        check_fits(Memory(weights=1, step=2 * GB, free=8 * GB, budget=0), 6 * GB + 1)
    path = make_qwen3(tmp_path / "model")
    model = load_model(path, WorkerOptions(model=str(path), device="cpu"))
    many = BatchLimits(1, max_num_seqs=64, max_num_batched_tokens=64)
    step = planned(limits=many).step
    monkeypatch.setattr(memory, "available_bytes", lambda: step + 10**7)
    options = WorkerOptions(model=str(path), device="cpu", max_model_len=512, kv_cache_memory_bytes=10**8)
    build_runner(model, options, LIMITS, Phases())  # eight requests of 512 tokens need no more than 2 MB
    with pytest.raises(ModelError, match="--kv-cache-memory-bytes"):
        build_runner(model, options, many, Phases())


def test_the_log_lists_the_memory_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Memory(weights=GB, step=2 * GB, free=8 * GB, budget=0).log_summary(3 * GB)
    line = "memory: weights 1.00 GB, peak of a step 2.00 GB, KV cache 3.00 GB; 3.00 GB stay free"
    assert [record.getMessage() for record in caplog.records] == [line]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("int8", [False, True])
def test_weights_are_counted_as_they_are_held(tmp_path: Path, tied: bool, int8: bool) -> None:
    """Padding of panels and int8 scales are not counted."""
    path = make_qwen3(tmp_path / "model", tie_word_embeddings=tied)
    config = describe(read_checkpoint(path, {}, "auto").config)
    counted = num_weight_bytes(config, 2, 1 if int8 else 2)
    sizes = {name: tensor.numel() for name, tensor in load_file(path / "model.safetensors").items()}
    matrices = sum(size for name, size in sizes.items() if "proj" in name or "head" in name)
    embedding, norms = sizes["model.embed_tokens.weight"], sum(sizes[name] for name in sizes if "norm" in name)
    matrices += embedding * tied
    assert counted == matrices * (1 if int8 else 2) + 4 * norms + 2 * embedding * (not tied)


@pytest.mark.parametrize(
    ("free", "options", "advice"),
    [
        (0.99, {}, "use a smaller model, or --quantization int8: its weights take "),
        (0.3, {}, "use a smaller model$"),
        (0.99, {"quantization": "int8"}, None),
        (0.4, {"quantization": "int8"}, "use a smaller model$"),
        (1.01, {}, None),
        (1.01, {"kv_cache_memory_bytes": 10**9}, r"the KV cache at least 1\.00 GB"),
        (1.01, {"max_model_len": 1_000_000}, r"the positions 0\.\d\d GB .*: lower --max-model-len"),
    ],
)
def test_weights_without_room_are_refused_with_what_is_needed(
    free: float, options: dict[str, Any], advice: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`free`: the free memory as a share of what bfloat16 weights take."""
    sizes = {"hidden_size": 1024, "intermediate_size": 8192, "num_hidden_layers": 8, "max_position_embeddings": 2**20}
    model = config_of(**sizes, tie_word_embeddings=True)
    weights = num_weight_bytes(model, 2, 2)
    monkeypatch.setattr(memory, "available_bytes", lambda: int(free * weights))
    check = partial(
        check_weights_fit, model, torch.bfloat16, torch.device("cpu"), WorkerOptions(**{"max_model_len": 64, **options})
    )
    if advice is None:
        check()
    else:
        with pytest.raises(ModelError, match=advice):
            check()


def test_weights_that_are_loaded_again_leave_room_for_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker had the cache of --kv-cache-memory-bytes; less memory is free now."""
    model, options = config_of(hidden_size=256), WorkerOptions(kv_cache_memory_bytes=GB, max_model_len=64)
    layout = kv_layout(model, 64)
    weights, one = num_weight_bytes(model, 2, 2), 4 * block_bytes(model, layout, 16, torch.bfloat16)
    tables = sum(table_bytes(rope, 64) for rope in {layer.attention.rope for layer in model.layers} if rope)
    check = partial(check_weights_fit, model, torch.bfloat16, torch.device("cpu"), options)
    monkeypatch.setattr(memory, "available_bytes", lambda: weights + tables + one)
    with pytest.raises(ModelError, match=r"the KV cache at least 1\.00 GB"):
        check()
    check(KvCacheSize(num_blocks=9, max_model_len=64, smallest=4))
    with pytest.raises(ModelError, match="GB of memory are free"):
        check(KvCacheSize(num_blocks=9, max_model_len=64, smallest=5))
