"""Triton's activations and soft caps equal their twins; they, norms and rope are batch-invariant."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu.activation import activate
from kernels.program import ACTIVATIONS
from tests.kernels import cases
from tests.kernels.gpu_cases import DEVICE, DTYPES, few


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    rows=st.integers(1, 9), size=st.sampled_from([1, 17, 192, 1024, 1500]), gated=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_activations(dtype: torch.dtype, kind: str, rows: int, size: int, gated: bool, seed: int) -> None:
    cases.check_activate(DEVICE, dtype, rows, size, kind, gated, seed)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's
@few
@given(rows=st.integers(1, 9), vocab=st.sampled_from([1, 17, 1024, 1500]), cap=st.sampled_from([1.0, 30.0]))
def test_soft_caps(rows: int, vocab: int, cap: float) -> None:
    cases.check_soft_cap(DEVICE, torch.float32, rows, vocab, cap)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter's
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_nan_stays_nan(kind: str, gated: bool) -> None:
    assert torch.isnan(activate(torch.full((1, 4), float("nan"), device=DEVICE), kind, gated)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_alone(dtype: torch.dtype) -> None:
    cases.check_rows_of_pointwise(DEVICE, dtype, [1, 2, 7, 33], size=192, head_dim=24)
