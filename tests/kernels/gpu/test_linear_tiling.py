"""Launches of products: schedules cover the weight, launches fit the card and its workspace, and keep it busy."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import linear_tiling, tile_table
from kernels.gpu.card import H100, Card
from kernels.gpu.linear_tiling import Launch, Launches, Tile, schedule_for, tiles_of, workspace_bytes
from kernels.gpu.tile_table import Entry
from tests.kernels.gpu_cases import DTYPES

A100, A10 = Card(80, 108, 163 * 1024), Card(86, 72, 99 * 1024)
BF16 = torch.bfloat16


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No card has a table."""
    monkeypatch.setattr(tile_table, "entries", lambda *args: [])


def programs(launches: Launches, n: int, rows: int) -> int:
    tile, split = launches.at(rows)
    return -(-rows // tile.rows) * -(-n // tile.columns) * (launches.schedule.segments if split else 1)


@settings(max_examples=1000)
@given(
    n=st.one_of(st.integers(1, 2000), st.integers(1, 200_000)),
    k=st.integers(1, 30_000),
    dtype=st.sampled_from(DTYPES),
    rows=st.one_of(st.integers(1, 70), st.integers(1, 20_000)),
    card=st.sampled_from([H100, A100, A10]),
)
def test_a_schedule_covers_the_weight_within_workspace_bytes(
    n: int, k: int, dtype: torch.dtype, rows: int, card: Card
) -> None:
    block_k, steps, segments = schedule_for(n, k, dtype)
    assert (segments - 1) * steps * block_k < k <= segments * steps * block_k
    for launch in Launches(n, k, dtype, dtype, card).candidates(rows):
        if launch.split:
            assert 4 * segments * rows * n <= workspace_bytes(rows)


@pytest.mark.parametrize("card", [H100, A100, A10], ids=lambda card: card.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_fit_the_cards_shared_memory(card: Card, dtype: torch.dtype) -> None:
    tiles = tiles_of(card, dtype)
    assert len(tiles) >= 3
    for tile in tiles:
        assert tile.num_stages * (tile.columns + tile.rows) * linear_tiling.STEP_BYTES <= card.shared_bytes
    if card is H100:
        assert all(4 <= tile.num_stages <= 6 for tile in tiles)


@pytest.mark.usefixtures("estimated")
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (4096, 12288)], ids=["out", "down"])
def test_no_row_count_leaves_half_of_a_card_idle(n: int, k: int) -> None:
    """The products of Qwen3-8B with the fewest outputs."""
    launches = Launches(n, k, BF16, BF16, H100)
    for rows in (1, 16, 17, 32, 64, 65, 128, 129, 200, 256, 257, 384, 385, 512, 1024, 8192):
        assert programs(launches, n, rows) >= 0.7 * H100.processors, (rows, launches.at(rows))


def test_row_classes_reach_every_launch() -> None:
    launches = Launches(4096, 4096, BF16, BF16, H100)
    classes = launches.row_classes(3000)
    assert classes[0] == 1 and classes == sorted(set(classes)) and len(classes) > 3
    assert {launches.at(rows) for rows in classes} == {launches.at(rows) for rows in range(1, 3001)}
    assert launches.row_classes(1) == [1]


@pytest.mark.usefixtures("estimated")
def test_measured_launches_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most `rows` rows; beyond the last entry the estimate decides."""
    few, many = Entry(2, (64, 32, 4, 3), False), Entry(40, (128, 64, 8, 5), True)
    beyond = Launches(4096, 4096, BF16, BF16, H100).at(41)
    monkeypatch.setattr(tile_table, "entries", lambda *args: [few, many])
    launches = Launches(4096, 4096, BF16, BF16, H100)
    assert [launches.at(rows) for rows in (1, 2)] == [Launch(Tile(64, 32, 4, 3), False)] * 2
    assert [launches.at(rows) for rows in (3, 40)] == [Launch(Tile(128, 64, 8, 5), True)] * 2
    assert launches.at(41) == beyond
    assert launches.row_classes(41)[:2] == [1, 3]


@pytest.mark.parametrize("path", sorted(tile_table.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_launches_of_a_table_fit_card_workspace_and_registers(path: Path) -> None:
    card = {H100.name: H100}[path.stem]
    for key, entries in json.loads(path.read_text())["products"].items():
        n, k, dtype, quantization = key.split(",")
        assert (dtype, quantization) == ("bfloat16", "none")
        schedule = schedule_for(int(n), int(k), BF16)
        for entry in entries:
            columns, rows, _, stages = entry["tile"]
            assert stages * (columns + rows) * linear_tiling.STEP_BYTES <= card.shared_bytes
            if not entry["split"]:
                assert schedule.segments == 1 or columns * rows <= linear_tiling.ONE_ACCUMULATOR
            elif schedule.segments > 1:
                assert 4 * schedule.segments * entry["rows"] * int(n) <= linear_tiling.MAX_PARTIAL_BYTES


def test_an_8_bit_weight_takes_no_tile_whose_registers_would_spill() -> None:
    plain, eight = (Launches(16384, 4096, BF16, dtype, H100).candidates(4096) for dtype in (BF16, torch.int8))
    assert max(launch.tile.rows for launch in plain) == 256 and max(launch.tile.rows for launch in eight) == 128
