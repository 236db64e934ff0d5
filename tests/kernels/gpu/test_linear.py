"""Triton's matrix products equal their twin; every tile and path gives the same bits."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import linear_tiling, matrix, tile_table
from kernels.gpu.card import H100
from kernels.gpu.tile_table import Entry
from tests.kernels import product_cases
from tests.kernels.gpu_cases import DEVICE, every_form, few


@every_form
@few
@given(
    rows=st.integers(1, 130),
    n=st.one_of(st.just(1), st.integers(1, 150)),
    k=st.sampled_from([1, 17, 64, 200, 517, 768]),
    seed=st.integers(0, 99),
)
def test_linear(dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int) -> None:
    product_cases.check_linear(DEVICE, dtype, rows, n, k, quantization, seed)


@every_form
def test_a_row_of_a_product_depends_on_that_row_alone(
    dtype: torch.dtype, quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tile, with and without split-K, alternating by the number of rows."""
    rows = [1, 2, 15, 16, 17, 63, 64, 65, 130]
    tiles = itertools.cycle(linear_tiling.tiles_of(H100, dtype))
    entries = [Entry(count, next(tiles), count % 2 == 1) for count in rows]
    monkeypatch.setattr(tile_table, "entries", lambda *args: entries)
    monkeypatch.setattr(matrix, "launches_for", linear_tiling.Launches)  # not a kept one, without these entries
    assert linear_tiling.schedule_for(70, 600, dtype).segments > 1
    product_cases.check_rows_of_linear(DEVICE, dtype, rows, 70, 600, quantization)


@every_form
@settings(few, max_examples=2)
@given(rows=st.integers(1, 130), n=st.integers(1, 150), k=st.sampled_from([1, 137, 261, 256]), seed=st.integers(0, 99))
def test_paths_of_a_product_give_the_same_bits(
    dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int
) -> None:
    product_cases.check_paths_of_linear(DEVICE, dtype, rows, n, k, quantization, seed)
