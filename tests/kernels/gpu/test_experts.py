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
    "tokens": st.sampled_from([1, 2, 7, 40]),
    "experts": st.sampled_from([8, 12]),
    "top_k": st.integers(1, 4),
    "hidden": st.sampled_from([16, 64, 130]),
    "size": st.sampled_from([16, 34]),
    "sigmoid": st.booleans(),
    "with_bias": st.booleans(),
    "adds": st.booleans(),
    "kind": st.sampled_from(["silu", "clamped_silu"]),
    "seed": st.integers(0, 99),
}
GROUPS = st.sampled_from([(1, 1), (1, 1), (2, 1), (4, 2), (4, 4)])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(shape=st.fixed_dictionaries(SHAPE), groups=GROUPS)
def test_experts(dtype: torch.dtype, shape: dict[str, Any], groups: tuple[int, int]) -> None:
    check_experts(TritonOps(), DEVICE, dtype, **shape, groups=groups[0], kept_groups=groups[1])


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_alone(dtype: torch.dtype, quantization: str | None) -> None:
    ops = TritonOps(quantization=quantization)
    check_tokens_alone(ops, DEVICE, dtype, tokens=45, experts=5, top_k=3, hidden=66, size=34, adds=True)
