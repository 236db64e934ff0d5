"""Candidates fit the GPU, a candidate with other bits fails its check, and the rows' entries make one table."""

from typing import Any

import pytest
import torch

from kernels.gpu.linear_tiling import STEP_BYTES, Schedule, schedule_for, workspace_bytes
from loadtest.gpu import tiles
from loadtest.gpu.shapes import DTYPE, PRODUCTS
from loadtest.gpu.tile_candidates import SHARED_BYTES, candidates, fitting_rows, shapes, stages_of
from loadtest.gpu.tiles import checks, measured, table_of

CPU = torch.device("cpu")
MOST = 80  # candidates of a product: about 20 ms each


@pytest.mark.parametrize("rows", tiles.ROWS)
@pytest.mark.parametrize(("n", "k"), PRODUCTS)
def test_candidates_are_few_and_fit_the_gpu(n: int, k: int, rows: int) -> None:
    schedule = schedule_for(n, k, DTYPE)
    found = list(candidates(rows, n, schedule))
    assert 0 < len(found) <= MOST and len(set(found)) == len(found)
    for tile, split in found:
        sums = tile.columns * tile.rows / (32 * tile.num_warps)
        assert tile.num_stages * (tile.columns + tile.rows) * STEP_BYTES <= SHARED_BYTES
        assert sums * (1 if split else 2) <= 128
        assert split or schedule.segments > 1
        assert not split or schedule.segments == 1 or schedule.segments * rows * n * 4 <= workspace_bytes(rows)
        assert tile.rows <= max(16, 2 * rows)


def test_each_row_count_has_tiles_around_it() -> None:
    assert {rows: fitting_rows(rows) for rows in (1, 16, 17, 64, 256, 2048)} == {
        1: (16, 16), 16: (16, 16), 17: (16, 32), 64: (32, 64), 256: (64, 256), 2048: (64, 256)
    }  # fmt: skip


def test_all_candidates_are_compiled_by_one_check_each() -> None:
    compiled = {(shape, stages) for shape in shapes() for stages in stages_of(shape)}
    timed = {
        (tile[:3], tile.num_stages)
        for n, k in PRODUCTS
        for rows in tiles.ROWS
        for tile, _ in candidates(rows, n, schedule_for(n, k, DTYPE))
    }
    assert timed <= compiled and len(compiled) < 70


def test_the_small_form_runs_to_its_end() -> None:
    details = [check.run() for check in checks(CPU)]
    assert details == ["4 launches", *["small form, nothing is timed on a CPU: tiles, card, torch, triton"] * 2]


def test_entries_are_candidates_by_ascending_rows() -> None:
    detail = measured(CPU, 70, 200, (1, 17))
    (entries,) = detail.data["tiles"].values()
    assert [entry["rows"] for entry in entries] == [1, 17]
    for entry in entries:
        found = candidates(entry["rows"], 70, schedule_for(70, 200, DTYPE))
        assert (entry["tile"], entry["split"]) in [(list(tile), split) for tile, split in found]


def test_a_candidate_with_other_bits_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tiles.multiplying

    def wrong(x: Any, weight: Any, scales: Any, schedule: Schedule, candidate: Any, dtype: torch.dtype) -> Any:
        call = right(x, weight, scales, schedule, candidate, dtype)
        return call if len(x) == 1 else lambda: torch.nextafter(call().float(), torch.tensor(9e9)).to(dtype) + 1

    monkeypatch.setattr(tiles, "multiplying", wrong)
    with pytest.raises(AssertionError, match="17 rows: .* gives other bits"):
        measured(CPU, 70, 200, (1, 17))


def row(card: str = "sm_90-132", **data: Any) -> dict[str, Any]:
    return {"name": "tiles", "data": {"card": card, "torch": "2.11.0", "triton": "3.6.0", **data}}


def entry(rows: int, us: float) -> dict[str, Any]:
    return {"rows": rows, "tile": [64, 16, 4, int(us)], "split": True, "us": us, "us_before": 9.0}


def test_rows_make_one_table() -> None:
    faster = {"equals_schedule": True, "first_rows": 1, "times": [{"rows": 1024, "us": 200.0, "own_us": 300.0}]}
    rows = [
        {"name": "machine", "data": {}},
        row(tiles={"64,64,bfloat16,none": [entry(1, 3.0)]}),
        row(tiles={"64,128,bfloat16,none": [entry(1, 4.0), entry(32, 5.0)]}),
        row(tiles={"64,64,bfloat16,none": [entry(1, 6.0)]}),
        {"name": "cublaslt", "data": {"backend": "cublaslt", "shapes": {"64,64": faster}}},
        {"name": "cublas", "data": {"backend": "cublas", "shapes": {"64,128": faster}}},
    ]
    plain = [{"rows": 1, "tile": [64, 16, 4, 4], "split": True}, {"rows": 32, "tile": [64, 16, 4, 5], "split": True}]
    assert table_of(rows) == {
        "card": "sm_90-132", "torch": "2.11.0", "triton": "3.6.0",
        "products": {
            "64,64,bfloat16,none": [{"rows": 1, "tile": [64, 16, 4, 6], "split": True}],
            "64,128,bfloat16,none": plain,
        },
        "library": {"64,64,bfloat16,none": 1024},
    }  # fmt: skip
    assert table_of(rows[:1]) == table_of(rows[-2:]) == {}


def test_rows_of_two_cards_make_no_table() -> None:
    rows = [row(tiles={"64,64,bfloat16,none": [entry(1, 3.0)]}), row("sm_80-108", tiles={"1,1,bfloat16,none": []})]
    with pytest.raises(ValueError, match="sm_80-108.*sm_90-132"):
        table_of(rows)
