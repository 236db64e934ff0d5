"""Triton's fused QK norm, rotary embedding and KV cache write equal their twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels import cases
from tests.kernels.gpu_cases import DEVICE, DTYPES, few


@pytest.mark.parametrize("dtype", DTYPES)
@settings(few, max_examples=16)
@given(
    tokens=st.integers(1, 9),
    heads=st.integers(1, 7),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([2, 6, 16, 24, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 4, 16]),
    with_norm=st.booleans(),
    turned=st.sampled_from([1.0, 0.75, 0.5, 0.25, 0.0]),
    own_tables=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rope_and_write(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    with_norm: bool,
    turned: float,
    own_tables: bool,
    seed: int,
) -> None:
    cases.check_rope_and_write(
        DEVICE, dtype, tokens, heads, kv_heads, head_dim, block_size, with_norm, seed, turned, own_tables
    )


def test_a_padding_token_writes_nothing() -> None:
    case = cases.rope_case(DEVICE, torch.float32, 3, 2, 1, 16, 4, with_norm=True)
    case.slots.fill_(-1)
    caches = case.copies()
    assert torch.isfinite(case.triton(caches)).all()
    assert all(torch.equal(*pair) for pair in zip(caches, case.caches, strict=True))
