"""How long the products of Qwen3-0.6B and 8B take, beside cuBLAS and the GPU's own limits. CUDA only; nothing here can
be wrong.

A limit is the time that the weight's bytes take to be read, or the multiplications to be done, at the rates that this
script finds: of a large copy, and of a large product by torch.

    python -m tests.gpu.products [N,K ...]    # all tiles, for who chooses the constants of kernels/gpu/linear.py
"""

import functools
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.gpu import linear
from kernels.gpu.linear import Schedule, Tile
from kernels.gpu.matrix import EightBitMatrix, TritonMatrix, matrix_of
from tests.gpu.kernels import LINEAR, forms
from tests.gpu.table import Check
from tests.gpu.timings import DTYPE, median_us

ROWS = (1, 32, 256, 2048)
COPY_BYTES, SIDE = 2 * 2**30, 8192
TILES = [
    *(Tile(64, rows, 4, stages) for rows in (16, 32, 64) for stages in (3, 4, 6)),
    *(Tile(128, rows, 8, stages) for rows in (64, 128) for stages in (3, 4)),
    *(Tile(columns, rows, 8, 3) for columns, rows in ((64, 128), (64, 256), (128, 256), (256, 128))),
    Tile(128, 128, 4, 3),
]


def checks(device: torch.device) -> list[Check]:
    return [
        Check("time limits: copy, torch.matmul", lambda: "{:.0f} GB/s, {:.0f} TFLOP/s".format(*limits(device))),
        *(
            Check(f"time linear {n} x {k}{f', {form}' if form else ''}", functools.partial(times, device, n, k, form))
            for form in forms(device)
            for n, k in LINEAR
        ),
    ]


@functools.cache
def limits(device: torch.device) -> tuple[float, float]:
    """GB/s and TFLOP/s."""
    source, target = (torch.ones(COPY_BYTES, dtype=torch.int8, device=device) for _ in range(2))
    bandwidth = 2 * COPY_BYTES / median_us(device, lambda: target.copy_(source)) / 1000
    left, right = (torch.randn(SIDE, SIDE, dtype=DTYPE, device=device) for _ in range(2))
    return bandwidth, 2 * SIDE**3 / median_us(device, lambda: left @ right) / 1e6


def limit_us(device: torch.device, rows: int, n: int, k: int, weight_itemsize: int) -> float:
    bandwidth, rate = limits(device)
    moved = n * k * weight_itemsize + rows * (n + k) * DTYPE.itemsize
    return max(moved / bandwidth / 1000, 2 * rows * n * k / rate / 1e6)


def weight_for(device: torch.device, n: int, k: int, form: str | None) -> TritonMatrix | EightBitMatrix:
    return matrix_of([torch.randn(n, k, dtype=DTYPE, device=device)], form)


def times(device: torch.device, n: int, k: int, form: str | None) -> str:
    """For each number of rows: microseconds, share of the limit, and those of cuBLAS in bf16."""
    matrix, plain = weight_for(device, n, k, form), torch.randn(n, k, dtype=DTYPE, device=device)
    itemsize = DTYPE.itemsize if form is None else 1
    told = []
    for rows in ROWS:
        x = torch.randn(rows, k, dtype=DTYPE, device=device)
        ours = median_us(device, functools.partial(matrix.product, x))
        torchs = median_us(device, functools.partial(F.linear, x, plain))
        share = limit_us(device, rows, n, k, itemsize) / ours
        told.append(f"{rows}: {ours:.1f} us ({share:.0%}; cuBLAS {torchs:.1f})")
    return ", ".join(told)


def tile_times(device: torch.device, n: int, k: int, form: str | None, rows: int) -> list[str]:
    """The fastest first: of all tiles and both orders of programs, and of fewer and more segments than it has."""
    matrix = weight_for(device, n, k, form)
    weight, scales = (matrix.weight, None) if isinstance(matrix, TritonMatrix) else (matrix.numbers, matrix.scales)
    x = torch.randn(rows, k, dtype=DTYPE, device=device)
    own = matrix.schedule
    num_steps = -(-k // own.block_k)
    schedules = {Schedule(own.block_k, steps, -(-num_steps // steps)) for steps in steps_around(own.steps, num_steps)}
    found: list[tuple[float, str]] = []
    for schedule in sorted(schedules):
        for tile in TILES:
            for split in (True, False) if schedule.segments > 1 else (True,):
                call: Callable[[], object] = functools.partial(
                    linear.multiply, x, weight, scales, schedule, DTYPE, tile, split
                )
                try:
                    us = median_us(device, call)
                except Exception as error:  # a tile too large for this GPU
                    found.append((float("inf"), f"{tuple(tile)}: {type(error).__name__}"))
                    continue
                path = "beside each other" if split else "one after the other"
                told = f"{tuple(tile)}, {schedule.segments} segments {path}"
                found.append((us, f"{us:8.1f} us {limit_us(device, rows, n, k, weight.itemsize) / us:4.0%}  {told}"))
    return [told for _, told in sorted(found)]


def steps_around(steps: int, num_steps: int) -> set[int]:
    """Of a segment: as many, half as many, twice as many, and all."""
    return {max(1, steps // 2), steps, min(num_steps, 2 * steps), num_steps}


def main() -> None:
    device = torch.device("cuda")
    shapes = [tuple(map(int, text.split(","))) for text in sys.argv[1:]] or LINEAR
    for n, k in shapes:
        for form in forms(device):
            for rows in ROWS:
                print(f"\n{n} x {k}, {form or 'bf16'}, {rows} rows, as it is: {linear.schedule_for(n, k, DTYPE)}")
                print("\n".join(tile_times(device, n, k, form, rows)[:6]), flush=True)


if __name__ == "__main__":
    main()
