"""Measured tiles of products by card: the JSON files in kernels/gpu/tiles, which loadtest/gpu writes on a GPU.

    {"card": "sm_90-132", "torch": "2.11.0", "triton": "3.6.0",
     "products": {"4096,12288,bfloat16,none": [{"rows": 1, "tile": [64, 16, 4, 6], "split": true}, ...]},
     "library": {"4096,12288,bfloat16,none": 512}}

A key is n, k, the activations' dtype, and the weight's quantization: none, int8 or fp8. A list's launches are for at
most `rows` rows, ascending; a tile is columns, rows, warps, stages. More rows than the last: estimated. `library`: the
rows from which on torch's product is used, because it has the same bits (library.py).
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from kernels.gpu.card import Card

FOLDER = Path(__file__).parent / "tiles"
QUANTIZATIONS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


class Entry(NamedTuple):
    rows: int
    tile: tuple[int, int, int, int]
    split: bool


class Table(NamedTuple):
    products: Mapping[str, Sequence[Entry]]
    library: Mapping[str, int]


def key_of(n: int, k: int, dtype: torch.dtype, weight_dtype: torch.dtype) -> str:
    return f"{n},{k},{str(dtype).removeprefix('torch.')},{QUANTIZATIONS.get(weight_dtype, 'none')}"


def path_of(card_name: str, folder: Path = FOLDER) -> Path:
    return folder / f"{card_name}.json"


def entries(
    card: Card, n: int, k: int, dtype: torch.dtype, weight_dtype: torch.dtype, folder: Path = FOLDER
) -> Sequence[Entry]:
    """Returns the measured launches of a weight [n, k], by ascending rows; none if the card has no table."""
    return _table(path_of(card.name, folder)).products.get(key_of(n, k, dtype, weight_dtype), ())


def library(card: Card, folder: Path = FOLDER) -> Mapping[str, int]:
    """Returns the rows from which on torch's product is used, by key."""
    return _table(path_of(card.name, folder)).library


@functools.cache
def _table(path: Path) -> Table:
    if not path.is_file():
        return Table({}, {})
    found = json.loads(path.read_text())
    products = {
        key: sorted(Entry(row["rows"], tuple(row["tile"]), row["split"]) for row in rows)
        for key, rows in found["products"].items()
    }
    return Table(products, found.get("library", {}))
