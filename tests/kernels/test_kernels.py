"""Each Triton kernel equals its plain torch twin over random shapes; cases.py says within what.

Without a GPU the kernels run through Triton's interpreter.
"""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.kernels import cases

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
# No shrinking: the interpreter is slow, and the shapes are small as they are.
few = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(tokens=st.integers(1, 9), size=st.sampled_from([1, 17, 64, 192, 1000]), seed=st.integers(0, 99))
def test_rms_norm(dtype: torch.dtype, tokens: int, size: int, seed: int) -> None:
    cases.check_rms_norm(DEVICE, dtype, tokens, size, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(rows=st.integers(1, 80), n=st.integers(1, 150), k=st.sampled_from([1, 17, 64, 200]), seed=st.integers(0, 99))
def test_linear(dtype: torch.dtype, rows: int, n: int, k: int, seed: int) -> None:
    cases.check_linear(DEVICE, dtype, rows, n, k, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_product_depends_on_that_row_alone(dtype: torch.dtype) -> None:
    cases.check_rows_of_linear(DEVICE, dtype, [1, 2, 15, 16, 17, 63, 64, 65, 130], n=70, k=200)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    tokens=st.integers(1, 7),
    heads=st.integers(1, 6),
    head_dim=st.sampled_from([2, 16, 24, 64, 128]),
    with_norm=st.booleans(),
    seed=st.integers(0, 99),
)
def test_norm_rope(dtype: torch.dtype, tokens: int, heads: int, head_dim: int, with_norm: bool, seed: int) -> None:
    cases.check_norm_rope(DEVICE, dtype, tokens, heads, head_dim, with_norm, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    tokens=st.integers(1, 20),
    kv_heads=st.integers(1, 4),
    head_dim=st.sampled_from([8, 48, 64]),
    block_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
)
def test_write_kv(dtype: torch.dtype, tokens: int, kv_heads: int, head_dim: int, block_size: int, seed: int) -> None:
    cases.check_write_kv(DEVICE, dtype, tokens, kv_heads, head_dim, block_size, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 150)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 5]),
    head_dim=st.sampled_from([16, 24, 64]),
    block_size=st.sampled_from([1, 4, 16, 32]),
    seed=st.integers(0, 99),
)
def test_paged_attention(
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int,
) -> None:
    cases.check_paged_attention(DEVICE, dtype, lens, kv_heads, group, head_dim, block_size, seed)


def test_attention_gives_the_same_bits_however_a_prompt_is_cut() -> None:
    cases.check_cuts_of_attention(DEVICE, torch.float32, 21, kv_heads=1, group=2, head_dim=16, block_size=4)
