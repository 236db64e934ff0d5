"""Triton's RMS norm and gated activation equal their twins; they and rope are batch-invariant."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import cases
from tests.kernels.gpu_cases import DEVICE, DTYPES, few


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(tokens=st.integers(1, 9), size=st.sampled_from([1, 17, 64, 192, 1000]), seed=st.integers(0, 99))
def test_rms_norm(dtype: torch.dtype, tokens: int, size: int, seed: int) -> None:
    cases.check_rms_norm(DEVICE, dtype, tokens, size, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(rows=st.integers(1, 9), size=st.sampled_from([1, 17, 192, 1024, 1500]), seed=st.integers(0, 99))
def test_silu_mul(dtype: torch.dtype, rows: int, size: int, seed: int) -> None:
    cases.check_silu_mul(DEVICE, dtype, rows, size, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_alone(dtype: torch.dtype) -> None:
    cases.check_rows_of_pointwise(DEVICE, dtype, [1, 2, 7, 33], size=192, head_dim=24)
