"""Kernels built by clang give the same bits as the installed ones, which another compiler may have built. Therefore the
compiler is not part of the numerics id (services/worker/facts.py).
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import VARIANTS, Library, load, runnable_variants
from kernels.cpu.ops import CpuOps
from kernels.program import ACTIVATIONS
from tests.kernels.attention_cases import attention_case
from tests.kernels.cases import EPS, randn, rope_case
from tests.kernels.cpu_cases import CPU, attend, every_dtype, in_cpu_layout
from tests.kernels.draw_cases import FILTERS, HOT, draws_of, logits_of

ROOT = Path(__file__).parents[3]
SIZES = [(1, 70, 1), (2, 64, 17), (5, 200, 136), (33, 96, 1030), (70, 130, 4100)]  # rows, n, k of a product

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("clang++") is None, reason="clang is not installed"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def by_clang(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Library]:
    """The modules built by clang, for each variant that this machine can run."""
    folder = tmp_path_factory.mktemp("clang")
    command = [sys.executable, "setup.py", "build_ext", f"--build-lib={folder}", f"--build-temp={folder / 'objects'}"]
    env = {**os.environ, "CC": "clang", "CXX": "clang++"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in (done.stdout + done.stderr).splitlines() if "warning:" in line or "error:" in line]
    assert warnings == []
    assert len(list(folder.glob("objects/*/**/*.o"))) == len(VARIANTS), "variants share an object file"
    return {variant: _module(folder, variant) for variant in runnable_variants()}


def _module(folder: Path, variant: str) -> Library:
    (file,) = folder.glob(f"kernels/cpu/_{variant}.*")
    spec = importlib.util.spec_from_file_location(f"_{variant}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Library, module)


@pytest.fixture(params=runnable_variants())
def pair(request: pytest.FixtureRequest, by_clang: dict[str, Library]) -> Iterator[tuple[Library, Library]]:
    yield load(request.param), by_clang[request.param]


def test_it_is_the_same_variant(pair: tuple[Library, Library]) -> None:
    installed, built = pair
    assert installed is not built
    assert (built.NAME, built.best_variant()) == (installed.NAME, installed.best_variant())


@every_dtype
@pytest.mark.parametrize("int8", [False, True])
def test_products(pair: tuple[Library, Library], dtype: torch.dtype, int8: bool) -> None:
    def bits(library: Library) -> Iterator[Tensor]:
        ops = CpuOps(library, 2, int8)
        for rows, n, k in SIZES:
            matrix = ops.matrix(randn(CPU, dtype, n, k, seed=n))
            x = randn(CPU, dtype, rows, k, seed=k)
            yield matrix.product(x)
            yield matrix.product(x, torch.float32, randn(CPU, torch.float32, n))
            yield matrix.rows(torch.arange(n))

    assert_equal(*map(bits, pair))


@every_dtype
def test_norms_activations_and_positions(pair: tuple[Library, Library], dtype: torch.dtype) -> None:
    def bits(library: Library) -> Iterator[Tensor]:
        ops = CpuOps(library, 2)
        for size in (1, 15, 192, 1000):
            x, residual = (randn(CPU, dtype, 20, size, seed=size + n) for n in (0, 1))
            weight, bias = (randn(CPU, torch.float32, size, seed=size + n) for n in (2, 3))
            for centred in (False, True):
                yield ops.norm(x, weight, bias, EPS, centred)
                yield from ops.add_norm(x, residual, 0.22, weight, None, EPS, centred)
            for kind in ACTIVATIONS:
                yield ops.activate(30 * torch.cat((x, residual), dim=1), kind, True)
        for head_dim in (16, 24, 128):
            case = rope_case(CPU, dtype, 20, 6, 2, head_dim, 16, with_norm=True)
            cache = in_cpu_layout(ops, *case.caches)
            places, qkv = torch.arange(3, 23), case.qkv.contiguous()
            yield ops.rope_and_write(qkv, case.norms, EPS, case.tables, case.positions, cache, places)
            yield from cache

    assert_equal(*map(bits, pair))


@every_dtype
def test_attention(pair: tuple[Library, Library], dtype: torch.dtype) -> None:
    def bits(library: Library) -> Iterator[Tensor]:
        for group, head_dim, block_size in ((1, 16, 1), (2, 64, 16), (3, 24, 4), (5, 80, 3), (2, 128, 32)):
            case = attention_case(CPU, dtype, [(40, 0), (1, 150), (7, 300)], 2, group, head_dim, block_size)
            yield attend(CpuOps(library, 2), case)

    assert_equal(*map(bits, pair))


@pytest.mark.parametrize("levels", [None, 5])
def test_draws(pair: tuple[Library, Library], levels: int | None) -> None:
    def bits(library: Library) -> Iterator[Tensor]:
        ops = CpuOps(library, 2)
        for vocab in (1, 100, 5003):
            draws = draws_of([*FILTERS, *HOT] * 5)
            yield from ops.draw(*logits_of(len(draws), vocab, levels, False, vocab), draws)

    assert_equal(*map(bits, pair))


def assert_equal(ones: Iterator[Tensor], others: Iterator[Tensor]) -> None:
    for index, (one, other) in enumerate(zip(ones, others, strict=True)):
        assert one.isfinite().all(), f"result {index}"
        assert torch.equal(one, other), f"result {index}"
