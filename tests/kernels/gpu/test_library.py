"""torch's product takes over from a number of rows on only if the card's table says so and it has the same bits."""

import json
import logging
from pathlib import Path

import pytest
import torch

from kernels.gpu import library, tile_table
from kernels.gpu.card import H100
from kernels.gpu.matrix import TritonMatrix
from kernels.gpu.ops import TritonOps
from tests.kernels.cases import randn
from tests.kernels.gpu_cases import DEVICE

N, K, ROWS = 96, 320, 20


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the card that lists the weight."""
    key = tile_table.key_of(N, K, torch.float32, torch.float32)
    (tmp_path / f"{H100.name}.json").write_text(json.dumps({"products": {}, "library": {key: ROWS}}))
    found = tile_table._table(tmp_path / f"{H100.name}.json")
    monkeypatch.setattr(tile_table, "_table", lambda path: found)
    monkeypatch.setattr(library, "_results", {})


def multiplied_by_the_library(matrix: TritonMatrix, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the row counts, of ROWS - 1 and ROWS, for which torch's product runs."""
    counts: list[int] = []
    real = library.product

    def note(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        counts.append(len(x))
        return real(x, weight)

    monkeypatch.setattr(library, "product", note)
    for rows in (ROWS - 1, ROWS):
        matrix.product(randn(DEVICE, torch.float32, rows, K))
    return counts


def test_a_listed_weight_with_the_same_bits_is_multiplied_by_the_library(
    listed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that picks inputs: its products are exact in any order."""
    weight = torch.zeros(N, K, device=DEVICE)
    weight[torch.arange(N), torch.randperm(K)[:N]] = 2.0
    assert multiplied_by_the_library(TritonMatrix(weight), monkeypatch) == [ROWS]


def test_a_listed_weight_with_other_bits_is_refused_and_told(
    listed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "product", lambda x, weight: x @ weight.T * (1 + 2**-20))
    with caplog.at_level(logging.WARNING):
        matrix = TritonMatrix(randn(DEVICE, torch.float32, N, K))
    assert "torch's product with a weight [96, 320] gives other bits" in caplog.text
    monkeypatch.undo()
    assert multiplied_by_the_library(matrix, monkeypatch) == []


def test_a_weight_that_is_not_listed_is_never_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "product", lambda x, weight: pytest.fail("compared"))
    TritonMatrix(randn(DEVICE, torch.float32, N, K)).product(randn(DEVICE, torch.float32, ROWS, K))


def test_the_kernels_name_has_the_librarys_version(listed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in library.ENVIRONMENT:
        monkeypatch.setenv(name, "")  # restored afterwards
    assert TritonOps(card=H100).name == f"triton+{library.version()}"
    assert TritonOps(batch_invariant=False, card=H100).name == "triton+torch"
