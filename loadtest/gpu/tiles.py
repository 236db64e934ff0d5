"""The fastest tile of each product of Qwen3-0.6B and 8B in bf16, for a table that the kernels load.

A table has, for each weight shape, the launch for up to so many rows (kernels/gpu/tiles). The order of a sum never
changes: each candidate must give the bits of the present launch. One check compiles all kernels of a tile's shape, so
that the compilations run concurrently; the checks that time find them in Triton's cache on disk. On a CPU the same code
runs with two small products, untimed.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from kernels.gpu import linear, tile_table
from kernels.gpu.card import card_of
from kernels.gpu.linear_tiling import STEP_BYTES, Launch, Schedule, Tile
from loadtest.gpu.cublas_bits import library_rows
from loadtest.gpu.engines import release
from loadtest.gpu.products import limit_us, multiplying, operands, weight_for
from loadtest.gpu.shapes import DTYPE, PRODUCTS, VOCAB
from loadtest.gpu.table import Check, Measured
from loadtest.gpu.tile_candidates import Shape, can_walk, candidates, shapes, stages_of
from loadtest.gpu.timings import median_us, shown

ROWS = (1, 32, 64, 128, 256, 512, 2048)
MAX_HEAD_ROWS = 256  # sampled tokens of a step
SMALL = ([(70, 200), (64, 64)], (1, 17))  # on a CPU: products, and rows
COMPILED = Schedule(STEP_BYTES // DTYPE.itemsize, 4, 2)  # of the products that compile kernels
Entry = dict[str, Any]


def checks(device: torch.device) -> list[Check]:
    """Returns the checks that compile, which may run concurrently, then those that time."""
    on_gpu = device.type == "cuda"
    compiling = [
        Check(
            f"compile tiles of {shape.columns} x {shape.rows}, {shape.warps} warps",
            functools.partial(compile_shape, device, shape),
            alone=False,
        )
        for shape in (shapes() if on_gpu else shapes()[:1])
    ]
    products, rows = (PRODUCTS, ROWS) if on_gpu else SMALL
    timing = [
        Check(f"tiles of {n} x {k}", functools.partial(fastest, device, n, k, rows_for(n, rows)), alone=on_gpu)
        for n, k in products
    ]
    return [*compiling, *timing]


def rows_for(n: int, rows: Iterable[int]) -> list[int]:
    return [count for count in rows if n != VOCAB or count <= MAX_HEAD_ROWS]


def compile_shape(device: torch.device, shape: Shape) -> str:
    """Launches every kernel of a tile's shape once, on a small product: with each number of stages, a program for each
    segment, for a single one, and for all. Returns the number of kernels as text."""
    block_k, steps, segments = COMPILED
    matrix = weight_for(device, shape.columns, block_k * steps * segments, None)
    weight, scales = operands(matrix)
    x = torch.randn(shape.rows, weight.shape[1], dtype=DTYPE, device=device)
    single = Schedule(block_k, steps * segments, 1)
    launches = [(COMPILED, True), (single, True)] + [(COMPILED, False)] * can_walk(shape, segments)
    count = 0
    for stages in stages_of(shape) if device.type == "cuda" else stages_of(shape)[:1]:
        tile = Tile(shape.columns, shape.rows, shape.warps, stages)
        for schedule, split in launches:
            for dtype in (DTYPE, torch.float32) if schedule.segments == 1 else (DTYPE,):  # float32: the head
                try:
                    multiplying(x, weight, scales, schedule, Launch(tile, split), dtype)()
                except OutOfResources:
                    continue
                count += 1
    return f"{count} launches"


def fastest(device: torch.device, n: int, k: int, rows: Sequence[int]) -> str:
    release()
    return shown(device, measured(device, n, k, rows))


def measured(device: torch.device, n: int, k: int, rows: Sequence[int]) -> Measured:
    """Times the candidates for a weight [n, k]. Returns its entries of the table, as `data["tiles"]`.

    Raises AssertionError if a candidate gives other bits than the present launch.
    """
    matrix = weight_for(device, n, k, None)
    dtype = torch.float32 if n == VOCAB else DTYPE  # logits are float32
    entries, parts = [], []
    for count in rows:
        x = torch.randn(count, k, dtype=DTYPE, device=device)
        present = functools.partial(linear.product, x, *operands(matrix), None, matrix.launches, dtype)
        now = median_us(device, present)
        us, best = min(_times(device, matrix, x, dtype, present()))
        entries.append({"rows": count, "tile": list(best.tile), "split": best.split, "us": us, "us_before": now})
        share, path = limit_us(device, count, n, k, DTYPE.itemsize) / us, "split" if best.split else "walking"
        parts.append(f"{count}: {us:.1f} us ({share:.0%}; before {now:.1f}) {tuple(best.tile)} {path}")
    return Measured("; ".join(parts), tiles={tile_table.key_of(n, k, DTYPE, DTYPE): entries}, **where(device))


def where(device: torch.device) -> dict[str, str]:
    """Returns what a table is for: the card, by capability and number of multiprocessors, and the versions."""
    card = card_of(device).name if device.type == "cuda" else "cpu"
    return {"card": card, "torch": version("torch"), "triton": version("triton")}


def table_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the table of `rows`, the JSON rows of checks, in the format of kernels/gpu/tiles; {} if none of them has
    tiles. `data["tiles"]` are entries by product, `data["shapes"]` what cublas_bits.py found of cuBLASLt. A later row
    replaces an earlier one of the same product.

    Raises ValueError if the rows are from different cards or versions.
    """
    table: dict[str, Any] = {}
    products: dict[str, list[Entry]] = {}
    library: dict[str, int] = {}
    for data in (row["data"] for row in rows):
        if data.get("backend") == "cublaslt":
            library |= library_rows(data["shapes"])
        if "tiles" not in data:
            continue
        found = {name: data[name] for name in ("card", "torch", "triton")}
        if table and table != found:
            raise ValueError(f"tiles of {found} and of {table} do not make one table")
        table = found
        for key, entries in data["tiles"].items():
            products[key] = [{name: entry[name] for name in ("rows", "tile", "split")} for entry in entries]
    return {**table, "products": products, "library": library} if table else {}


def _times(
    device: torch.device, matrix: Any, x: Tensor, dtype: torch.dtype, expected: Tensor
) -> Iterator[tuple[float, Launch]]:
    """Yields the µs of each candidate that fits the GPU."""
    weight, scales = operands(matrix)
    found = list(candidates(len(x), len(weight), matrix.launches.schedule))
    for candidate in found if device.type == "cuda" else found[:2]:
        call = multiplying(x, weight, scales, matrix.launches.schedule, candidate, dtype)
        try:
            out = call()
        except OutOfResources:
            continue
        assert torch.equal(out, expected), f"{len(x)} rows: {candidate} gives other bits"
        yield median_us(device, call), candidate
