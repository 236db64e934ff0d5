"""Triton's norms equal their twins: RMS norm and layer norm, of whole rows and of parts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import cases
from tests.kernels.gpu_cases import DEVICE, DTYPES, few


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    tokens=st.integers(1, 9),
    size=st.sampled_from([1, 17, 64, 192, 1000]),
    centred=st.booleans(),
    with_bias=st.booleans(),
    factor=st.sampled_from([1.0, 0.22]),
    seed=st.integers(0, 99),
)
def test_norms(
    dtype: torch.dtype, tokens: int, size: int, centred: bool, with_bias: bool, factor: float, seed: int
) -> None:
    cases.check_norm(DEVICE, dtype, tokens, size, centred, with_bias, factor, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    tokens=st.integers(1, 9),
    groups=st.integers(1, 5),
    size=st.sampled_from([1, 16, 80, 96, 300]),
    own=st.booleans(),
    centred=st.booleans(),
    with_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_norms_of_parts_of_rows(
    dtype: torch.dtype, tokens: int, groups: int, size: int, own: bool, centred: bool, with_bias: bool, seed: int
) -> None:
    cases.check_norm_of_parts(DEVICE, dtype, tokens, groups, size, own, centred, with_bias, seed)
