"""Triton's routers and mixtures of experts equal their twins; a token has the same bits alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu.ops import TritonOps
from tests.kernels.expert_cases import check_experts, check_tokens_alone
from tests.kernels.gpu_cases import DEVICE, DTYPES, few

SHAPE: dict[str, st.SearchStrategy[Any]] = {
    "tokens": st.sampled_from([1, 2, 7, 20]),
    "experts": st.sampled_from([4, 5]),
    "top_k": st.integers(1, 3),
    "hidden": st.sampled_from([16, 70]),
    "size": st.sampled_from([16, 34]),
    "with_bias": st.booleans(),
    "adds": st.booleans(),
    "kind": st.sampled_from(["silu", "clamped_silu"]),
    "seed": st.integers(0, 99),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(shape=st.fixed_dictionaries(SHAPE))
def test_experts(dtype: torch.dtype, shape: dict[str, Any]) -> None:
    check_experts(TritonOps(), DEVICE, dtype, **shape)


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [(torch.bfloat16, None), (torch.float32, "int8"), pytest.param(torch.float32, None, marks=pytest.mark.long)],
)
def test_a_token_has_the_same_bits_alone(dtype: torch.dtype, quantization: str | None) -> None:
    ops = TritonOps(quantization=quantization)
    check_tokens_alone(ops, DEVICE, dtype, tokens=9, experts=4, top_k=3, hidden=66, size=34, adds=True)
