"""Triton's choice of experts is its twin's, also with equal scores and in groups; a row has the same bits alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import reference
from kernels.gpu.route import route
from tests.kernels.cases import randn, share_of, tolerance
from tests.kernels.gpu_cases import DEVICE, few

GROUPS = [(1, 1), (2, 1), (4, 2), (4, 4), (3, 2)]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's
@few
@given(
    size=st.sampled_from([2, 3, 8, 17]),
    groups=st.sampled_from(GROUPS),
    top_k=st.integers(1, 4),
    sigmoid=st.booleans(),
    corrected=st.booleans(),
    renormalised=st.booleans(),
    seed=st.integers(0, 99),
)
def test_route(
    size: int, groups: tuple[int, int], top_k: int, sigmoid: bool, corrected: bool, renormalised: bool, seed: int
) -> None:
    experts, top_k = size * groups[0], min(top_k, size * groups[1])
    logits = randn(DEVICE, torch.float32, 6, experts, seed=seed).round()
    correction = randn(DEVICE, torch.float32, experts, seed=seed + 1) / 4 if corrected else None
    how = top_k, correction, sigmoid, renormalised, *groups, 1.5
    (ids, weights), (expected, shares) = route(logits, *how), reference.route(logits.clone(), *how)
    assert torch.equal(ids, expected)
    share_of(weights, shares, tolerance(shares))
    alone = route(logits[2:3].contiguous(), *how)
    assert torch.equal(alone[0][0], ids[2]) and torch.equal(alone[1][0], weights[2])
