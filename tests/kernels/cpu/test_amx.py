"""The AMX variant with its tile instructions emulated (kernels/cpu/native/tiles_emulated.h): layout, tiling, edges, and
a row's bits. The instructions themselves need a machine that has them: there the rest of this folder runs on them.
"""

import ctypes
import importlib.util
import mmap
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pybind11
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu.library import Library, best_variant, load, runnable_variants
from kernels.cpu.ops import CpuOps
from kernels.cpu.self_check import products_are_exact
from tests.kernels.attention_cases import attention_case, last_tokens
from tests.kernels.cases import randn, share_of, tolerance
from tests.kernels.cpu.test_int8 import twin
from tests.kernels.cpu_cases import CPU, allowed_for_products, attend, few

SOURCES = Path(__file__).parents[3] / "kernels" / "cpu" / "native"
NAME = "_amx_emulated"
DTYPE = torch.bfloat16
needs_avx512 = pytest.mark.skipif("avx512bf16" not in runnable_variants(), reason="the rest of it is AVX-512")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Library:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    file = tmp_path_factory.mktemp("amx") / f"{NAME}.so"
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]
    variant = ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi", "-DTANDEM_EMULATE_TILES", f"-DTANDEM_MODULE={NAME}"]
    include = [f"-I{path}" for path in (SOURCES, pybind11.get_include(), sysconfig.get_paths()["include"])]
    subprocess.run([compiler, *flags, *variant, *include, SOURCES / "module.cpp", "-o", file], check=True)
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Library, module)


@pytest.fixture
def library(built: Library) -> Iterator[Library]:
    yield built
    built.set_num_threads(1)


@needs_avx512
@few
@given(
    rows=st.integers(1, 70),
    n=st.integers(1, 200),
    k=st.sampled_from([1, 2, 17, 30, 32, 34, 64, 136, 2050, 4100]),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_product(library: Library, rows: int, n: int, k: int, wide: bool, seed: int) -> None:
    x = randn(CPU, DTYPE, rows, k + 3, seed=seed)[:, :k]
    weight = randn(CPU, DTYPE, n, k, seed=seed + 1)
    out = CpuOps(library).matrix(weight).product(x, torch.float32 if wide else None)
    expected = reference.linear(x, weight).to(out.dtype)
    share_of(out, expected, allowed_for_products(x, weight, expected))


@needs_avx512
@few
@given(rows=st.integers(1, 70), n=st.integers(1, 140), k=st.sampled_from([1, 33, 64, 600]), seed=st.integers(0, 99))
def test_int8_product(library: Library, rows: int, n: int, k: int, seed: int) -> None:
    x, weight = randn(CPU, DTYPE, rows, k, seed=seed), randn(CPU, DTYPE, n, k, seed=seed + 1)
    out = CpuOps(library, int8=True).matrix(weight).product(x, torch.float32)
    expected = (x.double() @ twin(weight).T).float()
    share_of(out, expected, allowed_for_products(x, weight, expected))


@needs_avx512
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("n", "k"), [(200, 136), (64, 1302)])
def test_a_row_of_a_product_depends_on_that_row_alone(
    library: Library, int8: bool, threads: int, n: int, k: int
) -> None:
    count = 264
    x, matrix = randn(CPU, DTYPE, count, k), CpuOps(library, int8=int8).matrix(randn(CPU, DTYPE, n, k, seed=1))
    alone = torch.cat([matrix.product(x[row : row + 1]) for row in range(count)])
    library.set_num_threads(threads)
    for rows in (*range(1, 66), 255, 256, 257, 264):
        assert torch.equal(matrix.product(x[:rows]), alone[:rows]), f"{rows} rows"
        mixed = torch.randperm(count, generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(matrix.product(x[mixed]), alone[mixed]), f"{rows} rows, mixed"


@needs_avx512
@pytest.mark.parametrize("k", [2080, 2082])
def test_a_row_of_a_deep_product_depends_on_that_row_alone(library: Library, k: int) -> None:
    """From 64 rows on and with more than 2,048 columns that fill tiles, x is multiplied part by part, as tiles."""
    count = 257
    x, matrix = randn(CPU, DTYPE, count, k), CpuOps(library).matrix(randn(CPU, DTYPE, 330, k, seed=1))
    alone = torch.cat([matrix.product(x[first : first + 1]) for first in range(count)])
    for rows in (63, 64, 79, 257):
        assert torch.equal(matrix.product(x[:rows]), alone[:rows]), f"{rows} rows"


@needs_avx512
@few
@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 150)), min_size=1, max_size=3),
    group=st.sampled_from([1, 3, 5]),
    head_dim=st.sampled_from([32, 80, 96, 128]),
    block_size=st.sampled_from([4, 16, 32]),
    window=st.sampled_from([0, 0, 5, 65, 100]),
    seed=st.integers(0, 99),
)
def test_attention(
    library: Library, lens: list[tuple[int, int]], group: int, head_dim: int, block_size: int, window: int, seed: int
) -> None:
    """As the twin's; and the last token of each request alone has the bits that it has in its chunk."""
    ops = CpuOps(library)
    case = attention_case(CPU, DTYPE, lens, 2, group, head_dim, block_size, seed, window)
    found, expected = attend(ops, case), case.twin()
    share_of(found, expected, tolerance(expected, floor=0.25))
    alone, rows = last_tokens(case)
    assert torch.equal(attend(ops, alone), found[rows])


@needs_avx512
def test_what_is_not_a_number_stays_in_its_row(library: Library) -> None:
    x, weight = randn(CPU, DTYPE, 20, 40), randn(CPU, DTYPE, 70, 40, seed=1)
    x[3, 39] = float("nan")
    out = CpuOps(library).matrix(weight).product(x)
    assert out[3].isnan().all() and out.isfinite().all(dim=1).sum() == 19


@needs_avx512
@pytest.mark.parametrize(
    ("rows", "n", "k"), [*((rows, 70, 70) for rows in (1, 15, 16, 17, 31, 32, 33, 47, 49)), (77, 260, 2080)]
)
def test_nothing_behind_the_last_row_is_read(library: Library, rows: int, n: int, k: int) -> None:
    """The rows end where memory does: tiles with a row too many would end the process."""
    page = mmap.PAGESIZE
    pages = -(-rows * k * 2 // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    x = torch.frombuffer(memory, dtype=DTYPE, offset=pages * page - rows * k * 2, count=rows * k).view(rows, k)
    x.copy_(randn(CPU, DTYPE, rows, k))
    end = ctypes.c_void_p(x.data_ptr() + rows * k * 2)
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    assert mprotect(end, page, 0) == 0
    matrix = CpuOps(library).matrix(randn(CPU, DTYPE, n, k, seed=1))
    assert torch.equal(matrix.product(x), matrix.product(x.clone()))


@needs_avx512
def test_another_order_has_another_name(library: Library) -> None:
    assert library.NAME != load("avx512bf16").NAME


@needs_avx512
def test_the_emulated_variant_passes_the_self_check(library: Library) -> None:
    assert products_are_exact(library)


@pytest.mark.parametrize("variant", sorted({*runnable_variants(), best_variant()}))
def test_every_variant_passes_the_self_check(variant: str) -> None:
    assert products_are_exact(load(variant))
