"""Times of the matrix products of Qwen3-0.6B and 8B, with cuBLAS and the GPU's limits. CUDA only; asserts nothing.

The limit is the time to move the bytes, or to do the operations, at the rates of limits.py.

    python -m loadtest.gpu.products [N,K ...]    # times all tiles; to choose constants of linear_tiling.py

N,K are a weight's outputs and inputs; by default all products of both models. Prints the six fastest tiles of each,
also with other schedules, which sum in another order. tiles.py looks for the fastest tile of the present schedule.
"""

import functools
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.gpu import linear
from kernels.gpu.linear_tiling import Launch, Schedule, schedule_for
from kernels.gpu.matrix import EightBitMatrix, TritonMatrix, matrix_of
from loadtest.gpu import ideal
from loadtest.gpu.limits import limits
from loadtest.gpu.shapes import DTYPE, PRODUCTS, quantizations
from loadtest.gpu.table import Check, Measured
from loadtest.gpu.tile_candidates import candidates
from loadtest.gpu.timings import median_us

ROWS = (1, 32, 256, 2048)


def checks(device: torch.device) -> list[Check]:
    return [
        Check(f"time linear {n} x {k}{f', {each}' if each else ''}", functools.partial(times, device, n, k, each))
        for each in quantizations(device)
        for n, k in PRODUCTS
    ]


def limit_us(device: torch.device, rows: int, n: int, k: int, weight_itemsize: int) -> float:
    work = ideal.product(rows, n, k, DTYPE.itemsize, DTYPE.itemsize, weight_itemsize)
    return 1e6 * work.seconds(limits(device))


def weight_for(device: torch.device, n: int, k: int, quantization: str | None) -> TritonMatrix | EightBitMatrix:
    return matrix_of([torch.randn(n, k, dtype=DTYPE, device=device)], quantization)


def operands(matrix: TritonMatrix | EightBitMatrix) -> tuple[Tensor, Tensor | None]:
    """Returns (the weight as stored [n, k], its scales [n] float32 if it is quantised)."""
    return (matrix.weight, None) if isinstance(matrix, TritonMatrix) else (matrix.qweight, matrix.scales)


def times(device: torch.device, n: int, k: int, quantization: str | None) -> Measured:
    """Returns, for each of ROWS: the product's µs, limit / time in percent, and the µs of cuBLAS in bf16."""
    matrix, plain = weight_for(device, n, k, quantization), torch.randn(n, k, dtype=DTYPE, device=device)
    itemsize = DTYPE.itemsize if quantization is None else 1
    parts, found = [], []
    for rows in ROWS:
        x = torch.randn(rows, k, dtype=DTYPE, device=device)
        own = median_us(device, functools.partial(matrix.product, x))
        cublas = median_us(device, functools.partial(F.linear, x, plain))
        share = limit_us(device, rows, n, k, itemsize) / own
        parts.append(f"{rows}: {own:.1f} us ({share:.0%}; cuBLAS {cublas:.1f})")
        found.append({"rows": rows, "us": own, "share": share, "cublas_us": cublas})
    return Measured(", ".join(parts), times=found)


def tile_times(
    device: torch.device, n: int, k: int, quantization: str | None, rows: int, schedules: set[Schedule]
) -> list[str]:
    """Returns one line for each candidate under each schedule, the fastest first. A tile too large for this GPU comes
    last. A schedule divides the k inputs into segments."""
    weight, scales = operands(weight_for(device, n, k, quantization))
    x = torch.randn(rows, k, dtype=DTYPE, device=device)
    found: list[tuple[float, str]] = []
    for schedule in sorted(schedules):
        for launch in candidates(rows, n, schedule):
            try:
                us = median_us(device, multiplying(x, weight, scales, schedule, launch, DTYPE))
            except Exception as error:  # a tile too large for this GPU
                found.append((float("inf"), f"{tuple(launch.tile)}: {type(error).__name__}"))
                continue
            path = "in parallel" if launch.split else "in sequence"
            what = f"{tuple(launch.tile)}, {schedule.segments} segments {path}"
            found.append((us, f"{us:.1f} us ({limit_us(device, rows, n, k, weight.itemsize) / us:.0%}) {what}"))
    return [line for _, line in sorted(found)]


def multiplying(
    x: Tensor, weight: Tensor, scales: Tensor | None, schedule: Schedule, launch: Launch, dtype: torch.dtype
) -> functools.partial[Tensor]:
    """Returns a function that computes the product by one candidate."""
    return functools.partial(linear.multiply, x, weight, scales, None, schedule, dtype, launch)


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
        own = schedule_for(n, k, DTYPE)
        for quantization in quantizations(device):
            for rows in ROWS:
                print(f"\n{n} x {k}, {quantization or 'bf16'}, {rows} rows, current: {own}")
                print("\n".join(tile_times(device, n, k, quantization, rows, schedules_around(own, k))[:6]), flush=True)


if __name__ == "__main__":
    main()
