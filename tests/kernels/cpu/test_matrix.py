"""Packed weights on the CPU: layout, products equal to their twin, and batch invariance of products."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu.library import Library
from kernels.cpu.matrix import STEP
from kernels.cpu.ops import CpuOps
from tests.kernels.cases import randn, share_of
from tests.kernels.cpu_cases import CPU, ROWS, allowed_for_products, every_dtype, few


@every_dtype
@few
@given(
    rows=st.integers(1, 40),
    n=st.integers(1, 200),
    k=st.sampled_from([1, 2, 17, 64, 136, 2050, 4100]),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear(ops: CpuOps, dtype: torch.dtype, rows: int, n: int, k: int, wide: bool, seed: int) -> None:
    x = randn(CPU, dtype, rows, k + 3, seed=seed)[:, :k]  # strided, as a part of something wider is
    weight = randn(CPU, dtype, n, k, seed=seed + 1)
    out = ops.matrix(weight).product(x, torch.float32 if wide else None)
    expected = reference.linear(x, weight).to(torch.float32 if wide else dtype)
    share_of(out, expected, allowed_for_products(x, weight, expected))


@every_dtype
def test_rows_of_a_packed_weight_come_back(ops: CpuOps, dtype: torch.dtype) -> None:
    weight = randn(CPU, dtype, 131, 33)
    ids = torch.tensor([0, 130, 7, 7, 64, 63])
    assert torch.equal(ops.matrix(weight).rows(ids), weight[ids])


def packed_by_hand(weight: Tensor, panel: int) -> Tensor:
    """[panels][k / STEP][PANEL][STEP], zeros beyond the weight: the layout that kernels/cpu/native/pack.h promises."""
    step = STEP[weight.dtype]
    n, k = weight.shape
    padded = F.pad(weight, (0, -k % step, 0, -n % panel))
    return padded.unflatten(0, (-1, panel)).unflatten(2, (-1, step)).transpose(1, 2).contiguous()


@every_dtype
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("k", [1, 31, 32, 33, 136, 1024])
@pytest.mark.parametrize("rows", [[1], [64], [200], [16, 8, 8], [5, 70, 1, 60]], ids=str)
def test_a_weight_is_packed_from_its_parts(
    library: Library, dtype: torch.dtype, threads: int, rows: list[int], k: int
) -> None:
    weight = randn(CPU, dtype, sum(rows), k + 1)[:, 1:]  # strided, so that rows begin anywhere
    parts = [part.contiguous() for part in weight.split(rows)]
    ops = CpuOps(library, threads)
    packed = ops.matrix(*parts)._packed
    panel = library.packed_size("f", 1, 1) // 4
    assert packed.tolist() == packed_by_hand(weight, panel).view(torch.uint8).flatten().tolist()
    again = ops.matrix(*(part.float() for part in parts), dtype=dtype)._packed
    assert torch.equal(again, packed), "from another type"


@every_dtype
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("n", "k"), [(200, 136), (64, 3000)])
def test_a_row_of_a_product_depends_on_that_row_alone(
    library: Library, dtype: torch.dtype, threads: int, n: int, k: int
) -> None:
    x, matrix = randn(CPU, dtype, max(ROWS), k), CpuOps(library).matrix(randn(CPU, dtype, n, k, seed=1))
    alone = torch.cat([matrix.product(x[row : row + 1]) for row in range(max(ROWS))])
    library.set_num_threads(threads)
    for rows in ROWS:
        assert torch.equal(matrix.product(x[:rows]), alone[:rows]), f"{rows} rows"
        mixed = torch.randperm(max(ROWS), generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(matrix.product(x[mixed]), alone[mixed]), f"{rows} rows, mixed"
