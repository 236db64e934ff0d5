"""Products with int8 weights equal their twin in float64 and are batch-invariant, in every runnable variant."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu.library import Library, load, runnable_variants
from kernels.cpu.ops import CpuOps
from tests.kernels.cases import randn, share_of, tolerance
from tests.kernels.cpu_cases import CPU, every_dtype, few

ROWS = range(1, 66)


@pytest.fixture(params=runnable_variants())
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    found = load(request.param)
    yield found
    found.set_num_threads(1)


@pytest.fixture
def ops(library: Library) -> CpuOps:
    return CpuOps(library, int8=True)


def twin(weight: Tensor) -> Tensor:
    """The dequantised weight in float64."""
    numbers, scales = reference.quantise(weight)
    return numbers.double() * scales.double()[:, None]


@every_dtype
@few
@given(
    rows=st.integers(1, 40),
    n=st.integers(1, 200),
    k=st.sampled_from([1, 2, 17, 64, 136, 1022, 1030]),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_product(ops: CpuOps, dtype: torch.dtype, rows: int, n: int, k: int, wide: bool, seed: int) -> None:
    x = randn(CPU, dtype, rows, k + 3, seed=seed)[:, :k]
    weight = randn(CPU, dtype, n, k, seed=seed + 1)
    out = ops.matrix(weight).product(x, torch.float32 if wide else None)
    expected = (x.double() @ twin(weight).T).to(torch.float32 if wide else dtype)
    summed = x.double().abs() @ twin(weight).abs().T
    share_of(out, expected, 4e-7 * summed + tolerance(expected))


@every_dtype
@few
@given(n=st.integers(1, 140), k=st.integers(1, 70), exponent=st.integers(-3, 3), seed=st.integers(0, 99))
def test_quantised_weights_are_those_of_the_twin(
    ops: CpuOps, dtype: torch.dtype, n: int, k: int, exponent: int, seed: int
) -> None:
    weight = randn(CPU, dtype, n, k, seed=seed) * 10**exponent
    numbers, scales = reference.quantise(weight)
    found = ops.matrix(weight).rows(torch.arange(n))
    assert torch.equal(found, (numbers.float() * scales[:, None]).to(dtype))
    share_of(found.double(), weight.double(), 0.51 * scales.double()[:, None] + tolerance(weight) + 1e-30)


@every_dtype
def test_every_number_of_eight_bits_is_widened_exactly(ops: CpuOps, dtype: torch.dtype) -> None:
    """Each row has all values from -127 to 127, so its scale is 1 and products with the identity are exact."""
    weight = torch.arange(-127, 128).repeat(255, 1)
    weight = weight.gather(1, (torch.arange(255)[:, None] + torch.arange(255)) % 255).to(dtype)
    matrix = ops.matrix(weight)
    for rows in (1, 5, 255):
        identity = torch.eye(255, dtype=dtype)[:rows]
        assert torch.equal(matrix.product(identity, torch.float32), weight.T[:rows].float())


@every_dtype
def test_rows_of_zeros_and_rows_that_are_not_finite(ops: CpuOps, dtype: torch.dtype) -> None:
    weight = torch.ones(4, 33, dtype=dtype)
    weight[1], weight[2, 32], weight[3, 7] = 0, float("nan"), float("-inf")
    out = ops.matrix(weight).product(torch.ones(3, 33, dtype=dtype), torch.float32)
    assert out[:, 0].tolist() == pytest.approx([33] * 3) and out[:, 1].tolist() == [0, 0, 0]
    assert not out[:, 2:].isfinite().any()


@every_dtype
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("n", "k"), [(200, 136), (64, 1300)])
def test_a_row_of_a_product_depends_on_that_row_alone(
    library: Library, dtype: torch.dtype, threads: int, n: int, k: int
) -> None:
    """The kernel has one code path for few rows and one for many."""
    count = 600
    x, matrix = randn(CPU, dtype, count, k), CpuOps(library, int8=True).matrix(randn(CPU, dtype, n, k, seed=1))
    alone = torch.cat([matrix.product(x[row : row + 1]) for row in range(count)])
    library.set_num_threads(threads)
    for rows in (*ROWS, 255, 256, 257, 600):
        assert torch.equal(matrix.product(x[:rows]), alone[:rows]), f"{rows} rows"
        mixed = torch.randperm(count, generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(matrix.product(x[mixed]), alone[mixed]), f"{rows} rows, mixed"


def test_int8_has_a_name_of_its_own(library: Library) -> None:
    assert CpuOps(library, int8=True).name != CpuOps(library).name
