"""Measured tiles of a card are read from its file."""

import json
from pathlib import Path

import torch

from kernels.gpu.card import H100
from kernels.gpu.tile_table import Entry, entries

BF16 = torch.bfloat16
ROWS = [{"rows": 32, "tile": [64, 32, 4, 6], "split": True}, {"rows": 1, "tile": [64, 16, 4, 6], "split": False}]


def test_entries_are_those_of_the_card_the_shape_and_the_types(tmp_path: Path) -> None:
    table = {"card": H100.name, "products": {"4096,1024,bfloat16,int8": ROWS}}
    (tmp_path / f"{H100.name}.json").write_text(json.dumps(table))
    found = entries(H100, 4096, 1024, BF16, torch.int8, tmp_path)
    assert found == [Entry(1, (64, 16, 4, 6), False), Entry(32, (64, 32, 4, 6), True)]
    assert not entries(H100, 4096, 1024, BF16, BF16, tmp_path)
    assert not entries(H100, 1024, 4096, BF16, torch.int8, tmp_path)


def test_a_card_without_a_table_has_no_entries(tmp_path: Path) -> None:
    assert not entries(H100, 4096, 1024, BF16, BF16, tmp_path)
