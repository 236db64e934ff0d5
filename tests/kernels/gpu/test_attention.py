"""Triton's paged attention equals its twin; chunked prefill and KV splits give the same bits."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu import attention_tiling
from tests.kernels import attention_cases, cases
from tests.kernels.gpu_cases import DEVICE, DTYPES, few

# Small tiles and segments, so that few keys make several of each; page sizes of every kind against a tile of 16.
ATTENTION: dict[str, st.SearchStrategy[Any]] = {
    "lens": st.lists(
        st.one_of(st.tuples(st.integers(1, 40), st.integers(0, 150)), st.just((1, -1))), min_size=1, max_size=4
    ),
    "kv_heads": st.integers(1, 3),
    "group": st.sampled_from([1, 2, 3, 5]),
    "head_dim": st.sampled_from([16, 24, 64]),
    "block_size": st.sampled_from([1, 3, 4, 16, 48, 256]),
    "seed": st.integers(0, 99),
    "window": st.one_of(st.just(0), st.integers(1, 200)),
    "soft_cap": st.sampled_from([0.0, 1.5]),
    "with_sinks": st.booleans(),
    "tile": st.just(16),
    "segment": st.sampled_from([16, 32, 48]),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@few
@given(shape=st.fixed_dictionaries(ATTENTION))
def test_paged_attention(dtype: torch.dtype, shape: dict[str, Any]) -> None:
    attention_cases.check_paged_attention(DEVICE, dtype, **shape)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.long)])
@few
@given(shape=st.fixed_dictionaries(ATTENTION))
def test_attention_gives_the_same_bits_however_it_is_split(dtype: torch.dtype, shape: dict[str, Any]) -> None:
    """A decode token also has the bits of the same position within a prefill chunk."""
    attention_cases.check_splits_of_attention(DEVICE, dtype, **shape)


@pytest.mark.parametrize("group", [64, 100])
def test_attention_where_one_query_fills_a_tile(group: int) -> None:
    attention_cases.check_paged_attention(DEVICE, torch.float32, [(3, 20), (1, 5)], 1, group, 16, 16)


@pytest.mark.parametrize(("window", "soft_cap", "with_sinks"), [(0, 0.0, True), (30, 1.5, False)])
def test_attention_with_production_tiling(window: int, soft_cap: float, with_sinks: bool) -> None:
    """The production tiling and number of KV splits, over more than two segments."""
    lens = [(1, 600), (1, -1), (1, 255), (1, 256)]
    case = attention_cases.attention_case(DEVICE, torch.bfloat16, lens, 1, 2, 16, 16, 0, window, soft_cap, with_sinks)
    out = case.triton()
    assert attention_tiling.choose_num_splits(4, 1) > 1 and attention_cases.same_bits(out, case.by(case.tiling(), 1))
    assert not out[1].any()
    cases.share_of(out, case.twin(), cases.tolerance(case.twin(), floor=0.25))


@pytest.mark.parametrize(
    ("dtype", "window"),
    [
        (torch.bfloat16, 9),
        *(pytest.param(torch.bfloat16, window, marks=pytest.mark.long) for window in (0, 40)),
        pytest.param(torch.float32, 40, marks=pytest.mark.long),
        *(pytest.param(torch.float32, window, marks=pytest.mark.long) for window in (0, 9)),
    ],
    ids=str,
)
def test_attention_gives_the_same_bits_however_a_prompt_is_chunked(dtype: torch.dtype, window: int) -> None:
    shape = {"kv_heads": 1, "group": 2, "head_dim": 16, "block_size": 4}
    attention_cases.check_cuts_of_attention(DEVICE, dtype, 75, **shape, window=window, tile=16, segment=32)


def test_scratch_bytes_are_the_largest_workspace_of_any_batch() -> None:
    heads, kv_heads, head_dim, length = 32, 8, 128, 5000
    for tokens in (1, 7, 2000):
        taken = max(
            rows * heads * -(-length // attention_tiling.SEGMENT) * (head_dim + 2) * 4
            for rows in range(tokens + 1)
            if rows and attention_tiling.choose_num_splits(rows, kv_heads) > 1
        )
        assert taken == attention_tiling.scratch_bytes(tokens, heads, kv_heads, head_dim, length)
