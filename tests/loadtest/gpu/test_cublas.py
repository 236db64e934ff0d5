"""The comparison of bits finds a planted difference; its small form runs in a process of its own."""

import pytest
import torch
from torch import Tensor

from loadtest.gpu import cublas_bits
from loadtest.gpu.cublas import BACKENDS, ask, checks, describe
from loadtest.gpu.cublas_bits import Answer, compare, library_rows, of_shape, row_counts
from loadtest.gpu.shapes import VOCAB
from loadtest.gpu.table import Note

CPU = torch.device("cpu")
X = torch.randn(9, 16, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))


def row_by_row(span: slice) -> Tensor:
    return torch.stack([WEIGHT @ row for row in X[span]])


def test_row_counts_have_every_power_of_two_and_its_neighbours() -> None:
    counts = row_counts(8192)
    assert 55 <= len(counts) <= 70 and counts == sorted(set(counts))
    assert {1, 2, 15, 16, 17, 96, 127, 128, 129, 4097, 8191, 8192} <= set(counts) and max(counts) == 8192
    assert row_counts(9) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_product_of_single_rows_is_equal_in_any_number_of_rows() -> None:
    found, whole = compare(row_by_row, len(X))
    assert found == {"equal": True, "unequal_rows": [], "first_rows": 1}
    assert torch.equal(whole, row_by_row(slice(0, 9)))


@pytest.mark.parametrize("is_last", [False, True])
def test_a_planted_difference_is_found(is_last: bool) -> None:
    """One bit of one result, in batches of 3 and 5 rows, where those are the first or the last rows of x."""

    def multiply(span: slice) -> Tensor:
        out = row_by_row(span)
        if len(out) in (3, 5) and (span.start > 0) == is_last:
            out[1, 2] = torch.nextafter(out[1, 2], torch.tensor(torch.inf))
        return out

    assert compare(multiply, len(X))[0] == {"equal": False, "unequal_rows": [3, 5], "first_rows": 6}


def test_the_own_kernel_is_equal_to_itself_and_unequal_to_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of torch's product: the own kernel by one segment; then one that sums backwards. In float32, whose bits
    show any other order."""
    weight, x = torch.randn(64, 1024), torch.randn(9, 1024)
    schedule = cublas_bits.Schedule(32, 32, 1)

    def segment(rows: Tensor, weight: Tensor) -> Tensor:
        launch = cublas_bits.Launch(cublas_bits.TILE, True)
        return cublas_bits.multiplying(rows, weight, None, schedule, launch, torch.float32)()

    monkeypatch.setattr(cublas_bits.F, "linear", segment)
    found = of_shape(weight, x)
    assert found["equal"] and found["equals_own"] and found["unequal_share"] == 0
    assert not found["equals_schedule"]  # this weight has several segments
    assert {timed["rows"] for timed in found["times"]} == {4} and found["times"][0]["us"] > 0
    monkeypatch.setattr(cublas_bits.F, "linear", lambda rows, weight: segment(rows.flip(1), weight.flip(1)))
    found = of_shape(weight, x)
    assert found["equal"] and not found["equals_own"] and 0 < found["unequal_share"] <= 1


def shape_answer(times: tuple[tuple[int, float, float], ...], equal_from: int = 1, equals: bool = True) -> Answer:
    return {
        "equal": equal_from == 1, "unequal_rows": [], "first_rows": equal_from, "equals_own": equals,
        "equals_schedule": equals, "times": [{"rows": rows, "us": us, "own_us": own} for rows, us, own in times],
    }  # fmt: skip


def test_the_library_is_taken_from_where_it_is_equal_and_faster_to_the_last() -> None:
    faster = ((256, 200.0, 300.0), (1024, 400.0, 500.0), (4096, 2000.0, 2200.0))
    slow_at_first = ((256, 400.0, 300.0), *faster[1:])
    slower = (*faster[:2], (4096, 2300.0, 2200.0))
    hosts = ((256, 100.0, 300.0), *faster[1:])  # shorter than the host takes for it
    shapes = {
        "1,1": shape_answer(faster),
        "2,2": shape_answer(slow_at_first),
        "3,3": shape_answer(slower),
        "4,4": shape_answer(faster, equal_from=257),
        "5,5": shape_answer(faster, equals=False),
        "6,6": shape_answer(faster, equal_from=8192),
        "7,7": shape_answer(hosts),
        f"{VOCAB},8": shape_answer(faster),
    }
    assert library_rows(shapes) == {
        "1,1,bfloat16,none": 256, "2,2,bfloat16,none": 1024, "4,4,bfloat16,none": 1024, "7,7,bfloat16,none": 1024
    }  # fmt: skip
    fp8 = {"1,1": {"exact": {"equal": True}, "fast": {"error": ""}}}
    detail = describe({"version": "cuBLAS 1", "shapes": shapes, "fp8": fp8})
    assert type(detail) is Note and detail.data["shapes"] == shapes
    assert "6 of 8 weights have the same bits" in detail and "4,4: 257, 6,6: 8192" in detail
    assert "fp8, exact sums: 1 of 1" in detail and "fp8, fast sums: 0 of 1" in detail


def test_the_small_form_runs_in_a_process_of_its_own() -> None:
    assert len(checks(CPU)) == len(BACKENDS)
    detail = ask(CPU, BACKENDS[0])
    assert detail == "small form, nothing is timed on a CPU: backend, version, shapes, fp8"
