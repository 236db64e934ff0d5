"""The cases of `tandem bench kernels`: their work, their copies, and that every Ops can run them."""

from collections.abc import Callable

import pytest
import torch

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import Ops
from kernels.torch_ops import TorchOps
from loadtest.kernels.cases import MAX_COPIES, Case, Shape, cases
from loadtest.kernels.limits import Work
from services.worker.models.describe import describe
from services.worker.models.description import Mixture, Mlp, Router
from tests.checkpoints import SMALL

MIB = 1024**2
TINY = Shape(64, 96, 4, 2, 16, 300)
SPARSE = Shape(64, 0, 4, 2, 16, 300, Mixture(8, Mlp(32, "clamped_silu", alpha=1.7, limit=7.0), Router(2)))


def by_name(shape: Shape, cold_bytes: int) -> dict[tuple[str, str], Case]:
    return {(case.kernel, case.shape): case for case in cases(shape, cold_bytes)}


def test_bytes_and_operations_of_the_cases() -> None:
    found = {name: case.work for name, case in by_name(Shape(), 64 * MIB).items()}
    assert found["product down", "8 x 3072 x 1024"] == Work(2 * 3072 * 1024, 2 * 8 * (3072 + 1024), 2 * 8 * 3072 * 1024)
    assert found["product head", "1 x 1024 x 151936"].warm_bytes == 2 * 1024 + 4 * 151936
    assert found["attention, decode", "8 requests at 300"].cold_bytes == 8 * 300 * 2 * 8 * 128 * 2
    assert found["attention, prefill", "256 tokens"].operations == 4 * 2048 * 256 * 257 // 2


def test_of_a_mixture_only_experts_that_are_hit_are_bytes() -> None:
    found = {name: case.work for name, case in by_name(SPARSE, MIB).items()}
    expert_bytes = 2 * 3 * 32 * 64
    assert found["experts", "1 x 2 of 8"] == Work(2 * expert_bytes, 2 * 2 * 64, 2 * expert_bytes)
    assert found["experts", "256 x 2 of 8"].cold_bytes == 8 * expert_bytes
    assert found["experts", "256 x 2 of 8"].operations == 256 * 2 * expert_bytes
    assert not [name for name, _ in found if name in ("product gate_up", "product down", "activate")]


def test_shapes_of_models() -> None:
    dense = describe({"architectures": ["Qwen3ForCausalLM"], "dtype": "float32", **SMALL})
    assert Shape.of(dense).intermediate_size == SMALL["intermediate_size"] and Shape.of(dense).mixture is None
    sparse = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = {"architectures": ["Qwen3MoeForCausalLM"], "dtype": "float32", **SMALL, **sparse}
    found = Shape.of(describe(config))
    assert found.intermediate_size == 0 and found.mixture is not None and found.mixture.expert.size == 32
    mixed = Shape.of(describe({**config, "mlp_only_layers": [1]}))
    assert mixed.intermediate_size == SMALL["intermediate_size"] and mixed.mixture == found.mixture


def test_data_that_would_need_too_many_copies_are_warm() -> None:
    name = "product out", "1 x 64 x 64"
    weight_bytes = 2 * 64 * 64
    cold = by_name(TINY, MAX_COPIES * weight_bytes)[name].work
    warm = by_name(TINY, MAX_COPIES * weight_bytes + 1)[name].work
    assert cold.cold_bytes == weight_bytes and warm.cold_bytes == 0
    assert cold.cold_bytes + cold.warm_bytes == warm.warm_bytes
    assert cold.operations == warm.operations == 2 * 64 * 64


def test_there_is_a_call_for_each_copy() -> None:
    """The copies of a weight together have at least `cold_bytes`."""
    calls = by_name(TINY, 5 * 2 * 64 * 64 - 1)["product out", "1 x 64 x 64"].make(TorchOps())
    assert len(calls) == 5
    assert len(by_name(TINY, 10**9)["product out", "1 x 64 x 64"].make(TorchOps())) == 1


@pytest.mark.parametrize("shape", [TINY, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("make_ops", [TorchOps, lambda: CpuOps(load("portable"), 1)], ids=["torch", "compiled"])
def test_every_case_runs(make_ops: Callable[[], Ops], shape: Shape) -> None:
    with torch.inference_mode():
        for case in cases(shape, 1):
            for run in case.make(make_ops()):
                run()
            assert case.work.cold_bytes + case.work.warm_bytes > 0, case.kernel
