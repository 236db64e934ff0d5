"""Triton's matrix products equal their twin; every tile and path gives the same bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import linear
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
    """Covers all three tiles, with and without split-K; ENOUGH is lowered so that few rows reach both."""
    monkeypatch.setattr(linear, "ENOUGH", 2)
    rows = [1, 2, 15, 16, 17, 63, 64, 65, 130]
    assert {linear.enough(count, 70) for count in rows} == {False, True}
    assert linear.schedule_for(70, 600, dtype).segments > 1
    product_cases.check_rows_of_linear(DEVICE, dtype, rows, 70, 600, quantization)


@every_form
@pytest.mark.parametrize("dtype", DTYPES)
@settings(few, max_examples=2)
@given(rows=st.integers(1, 130), n=st.integers(1, 150), k=st.sampled_from([1, 137, 261, 256]), seed=st.integers(0, 99))
def test_paths_of_a_product_give_the_same_bits(
    dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int
) -> None:
    product_cases.check_paths_of_linear(DEVICE, dtype, rows, n, k, quantization, seed)


@settings(max_examples=1000)
@given(
    n=st.one_of(st.integers(1, 2000), st.integers(1, 200_000)),
    k=st.integers(1, 30_000),
    dtype=st.sampled_from(DTYPES),
    rows=st.one_of(st.integers(1, 70), st.integers(1, 20_000)),
)
def test_a_schedule_covers_the_weight_within_workspace_bytes(n: int, k: int, dtype: torch.dtype, rows: int) -> None:
    block_k, steps, segments = linear.schedule_for(n, k, dtype)
    assert (segments - 1) * steps * block_k < k <= segments * steps * block_k
    if segments > 1 and not linear.enough(rows, n):
        assert 4 * segments * rows * n <= linear.workspace_bytes(rows)
