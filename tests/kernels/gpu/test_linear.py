"""Triton's matrix products equal their twin; every tile and path gives the same bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import matrix
from kernels.gpu.card import Card
from kernels.gpu.linear_tiling import Launches
from tests.kernels import product_cases
from tests.kernels.gpu_cases import DEVICE, DTYPES, every_form, few


@every_form
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    rows=st.integers(1, 130),
    n=st.one_of(st.just(1), st.integers(1, 150)),
    k=st.sampled_from([1, 17, 64, 200, 517, 768]),
    seed=st.integers(0, 99),
)
def test_linear(dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int) -> None:
    product_cases.check_linear(DEVICE, dtype, rows, n, k, quantization, seed)


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        *((dtype, None) for dtype in DTYPES),
        *((torch.bfloat16, name) for name in ("int8", "fp8")),
        *(pytest.param(torch.float32, name, marks=pytest.mark.long) for name in ("int8", "fp8")),
    ],
    ids=str,
)
def test_a_row_of_a_product_depends_on_that_row_alone(
    dtype: torch.dtype, quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch that a small card takes is covered, with and without split-K."""
    monkeypatch.setattr(matrix, "card_of", lambda device: Card(90, 1, 227 * 1024))
    rows = [1, 2, 15, 16, 17, 63, 64, 65, 130]
    weight_dtype = dtype if quantization is None else matrix.EIGHT_BITS[quantization][0]
    launches = Launches(70, 600, dtype, weight_dtype, Card(90, 1, 227 * 1024))
    assert launches.schedule.segments > 1
    used = {launches.at(count) for count in rows}
    assert {launch.split for launch in used} == {False, True} and len(used) > 2, used
    product_cases.check_rows_of_linear(DEVICE, dtype, rows, 70, 600, quantization)


@every_form
@pytest.mark.parametrize("dtype", DTYPES)
@settings(few, max_examples=2)
@given(rows=st.integers(1, 130), n=st.integers(1, 150), k=st.sampled_from([1, 137, 261, 256]), seed=st.integers(0, 99))
def test_paths_of_a_product_give_the_same_bits(
    dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int
) -> None:
    product_cases.check_paths_of_linear(DEVICE, dtype, rows, n, k, quantization, seed)
