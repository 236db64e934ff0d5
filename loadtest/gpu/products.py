"""Times of the matrix products of Qwen3-0.6B and 8B, with cuBLAS and the GPU's limits. CUDA only; asserts nothing.

The limit is the time to move the bytes, or to do the operations, at the rates of limits.py.

    python -m loadtest.gpu.products [N,K ...]    # times all tiles; for choosing the constants of kernels/gpu/linear.py

N,K are a weight's outputs and inputs; by default all products of both models. Prints the six fastest tiles of each.
"""

import functools
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.gpu import linear
from kernels.gpu.linear import Schedule, Tile
from kernels.gpu.matrix import EightBitMatrix, TritonMatrix, matrix_of
from loadtest.gpu.limits import limits
from loadtest.gpu.shapes import DTYPE, PRODUCTS, quantizations
from loadtest.gpu.table import Check
from loadtest.gpu.timings import median_us

ROWS = (1, 32, 256, 2048)
TUNED = [(24576, 4096, 2048), (4096, 12288, 2048), (24576, 4096, 32), (1024, 2048, 1)]  # n, k, rows
TILES = [
    *(Tile(64, rows, 4, stages) for rows in (16, 32, 64) for stages in (3, 4, 6)),
    *(Tile(128, rows, 8, stages) for rows in (64, 128) for stages in (3, 4)),
    *(Tile(columns, rows, 8, 3) for columns, rows in ((64, 128), (64, 256), (128, 256), (256, 128))),
    Tile(128, 128, 4, 3),
]


def checks(device: torch.device) -> list[Check]:
    return [
        Check(f"time linear {n} x {k}{f', {each}' if each else ''}", functools.partial(times, device, n, k, each))
        for each in quantizations(device)
        for n, k in PRODUCTS
    ]


def tiles(device: torch.device) -> list[Check]:
    """Returns checks that time all TILES, with segments in parallel and in sequence. All give the same bits. They take
    long to compile."""
    return [
        Check(f"tiles of linear {n} x {k}, {rows} rows", functools.partial(best, device, n, k, rows))
        for n, k, rows in TUNED
    ]


def best(device: torch.device, n: int, k: int, rows: int) -> str:
    """Returns the µs of `product`, and of the three fastest of TILES, in parallel or in sequence, as text."""
    matrix, x = weight_for(device, n, k, None), torch.randn(rows, k, dtype=DTYPE, device=device)
    own = median_us(device, functools.partial(matrix.product, x))
    return f"current {own:.1f} us; " + "; ".join(tile_times(device, n, k, None, rows, {matrix.schedule})[:3])


def limit_us(device: torch.device, rows: int, n: int, k: int, weight_itemsize: int) -> float:
    moved = n * k * weight_itemsize + rows * (n + k) * DTYPE.itemsize
    return 1e6 * max(moved / limits(device).memory, 2 * rows * n * k / limits(device).matrix)


def weight_for(device: torch.device, n: int, k: int, quantization: str | None) -> TritonMatrix | EightBitMatrix:
    return matrix_of([torch.randn(n, k, dtype=DTYPE, device=device)], quantization)


def times(device: torch.device, n: int, k: int, quantization: str | None) -> str:
    """Returns as text, for each of ROWS: the product's µs, limit / time in percent, and the µs of cuBLAS in bf16."""
    matrix, plain = weight_for(device, n, k, quantization), torch.randn(n, k, dtype=DTYPE, device=device)
    itemsize = DTYPE.itemsize if quantization is None else 1
    parts = []
    for rows in ROWS:
        x = torch.randn(rows, k, dtype=DTYPE, device=device)
        own = median_us(device, functools.partial(matrix.product, x))
        cublas = median_us(device, functools.partial(F.linear, x, plain))
        share = limit_us(device, rows, n, k, itemsize) / own
        parts.append(f"{rows}: {own:.1f} us ({share:.0%}; cuBLAS {cublas:.1f})")
    return ", ".join(parts)


def tile_times(
    device: torch.device, n: int, k: int, quantization: str | None, rows: int, schedules: set[Schedule]
) -> list[str]:
    """Returns one line for each of TILES under each schedule, with segments in parallel and in sequence, the fastest
    first. A tile too large for this GPU comes last. A schedule divides the k inputs into segments."""
    matrix = weight_for(device, n, k, quantization)
    weight, scales = (matrix.weight, None) if isinstance(matrix, TritonMatrix) else (matrix.qweight, matrix.scales)
    x = torch.randn(rows, k, dtype=DTYPE, device=device)
    found: list[tuple[float, str]] = []
    for schedule in sorted(schedules):
        for tile in TILES:
            for split in (True, False):
                call: Callable[[], object] = functools.partial(
                    linear.multiply, x, weight, scales, None, schedule, DTYPE, tile, split
                )
                try:
                    us = median_us(device, call)
                except Exception as error:  # a tile too large for this GPU
                    found.append((float("inf"), f"{tuple(tile)}: {type(error).__name__}"))
                    continue
                path = "in parallel" if split else "in sequence"
                what = f"{tuple(tile)}, {schedule.segments} segments {path}"
                found.append((us, f"{us:.1f} us ({limit_us(device, rows, n, k, weight.itemsize) / us:.0%}) {what}"))
    return [line for _, line in sorted(found)]


def schedules_around(own: Schedule, k: int) -> set[Schedule]:
    """Returns schedules with segments of as many steps as those of `own`, half, twice as many, and all. Each
    schedule sums in another order."""
    num_steps = -(-k // own.block_k)
    lengths = {max(1, own.steps // 2), own.steps, min(num_steps, 2 * own.steps), num_steps}
    return {Schedule(own.block_k, steps, -(-num_steps // steps)) for steps in lengths}


def main() -> None:
    device = torch.device("cuda")
    shapes = [tuple(map(int, text.split(","))) for text in sys.argv[1:]] or PRODUCTS
    for n, k in shapes:
        own = linear.schedule_for(n, k, DTYPE)
        for quantization in quantizations(device):
            for rows in ROWS:
                print(f"\n{n} x {k}, {quantization or 'bf16'}, {rows} rows, current: {own}")
                print("\n".join(tile_times(device, n, k, quantization, rows, schedules_around(own, k))[:6]), flush=True)


if __name__ == "__main__":
    main()
