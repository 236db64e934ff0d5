"""Compares the bits of torch's products by cuBLAS in many numbers of rows, and with those of kernels/gpu/linear.py.

Run by cublas.py in a process of its own. Backends: cublaslt, with the settings of kernels/gpu/library.py, by which
torch refuses split-K as well; and cublas, torch's default, with the same workspaces. With cublaslt also
torch._scaled_mm of e4m3 with one scale per row. On a CPU the same code compares torch's products there with the
interpreted kernel.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.gpu import library, linear, tile_table
from kernels.gpu.linear_tiling import Launch, Schedule, Tile
from kernels.gpu.matrix import TritonMatrix
from loadtest.gpu.products import multiplying
from loadtest.gpu.shapes import ALL_SHAPES, DTYPE, VOCAB, quantizations
from loadtest.gpu.timings import median_us

MAX_ROWS = {"cuda": 8192, "cpu": 9}
TIMED_ROWS = {"cuda": (256, 1024, 4096), "cpu": (4,)}
SMALL = [(70, 200), (64, 64)]  # n, k of the weights on a CPU
TILE = Tile(128, 128, 8, 3)
HOST_US = 170.0  # of one product: torch asks cuBLASLt for an algorithm each time (measured beside an H200, docs/log.md)
Answer = dict[str, Any]
Multiply = Callable[[slice], Tensor]  # returns the product of these rows of x


def answer(device: torch.device, backend: str) -> Answer:
    """Returns `shapes`: by "n,k", the Answer of `of_shape`; `fp8`: that of `of_fp8`, {} without fp8; `version`: of
    cuBLAS."""
    library.prepare()
    if device.type == "cuda" and backend != "cublaslt":
        torch.backends.cuda.preferred_blas_library(backend)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    shapes, fp8 = {}, {}
    for n, k in weights(device):
        weight = torch.randn(n, k, dtype=DTYPE, device=device)
        x = torch.randn(MAX_ROWS[device.type], k, dtype=DTYPE, device=device)
        shapes[f"{n},{k}"] = of_shape(weight, x)
        if device.type == "cuda" and backend == "cublaslt" and "fp8" in quantizations(device):
            fp8[f"{n},{k}"] = of_fp8(weight, x)
    return {"backend": backend, "version": library.version(), "shapes": shapes, "fp8": fp8}


def library_rows(shapes: dict[str, Answer]) -> dict[str, int]:
    """Returns, by a table's key (tile_table.py), the timed row count from which on the library has the bits of the
    weight's own schedule, is faster and takes the GPU longer than HOST_US; without the weights that have none, and
    without output heads, whose float32 results the library does not give."""
    found = {}
    for shape, each in shapes.items():
        n, k = map(int, shape.split(","))
        if n == VOCAB or not each["equals_schedule"]:
            continue
        slower = [timed["rows"] for timed in each["times"] if not HOST_US < timed["us"] < timed["own_us"]]
        least = max([each["first_rows"], *(rows + 1 for rows in slower)])
        rows = next((timed["rows"] for timed in each["times"] if timed["rows"] >= least), None)
        if rows is not None:
            found[tile_table.key_of(n, k, DTYPE, DTYPE)] = rows
    return found


def weights(device: torch.device) -> list[tuple[int, int]]:
    """Returns (n, k) of every product of the models, each once."""
    if device.type != "cuda":
        return SMALL
    return list(dict.fromkeys(product for shape in ALL_SHAPES.values() for product in shape.products))


def row_counts(most: int) -> list[int]:
    """Returns row counts up to `most`, 68 of them up to 8192: powers of two and their neighbours, and other edges of
    tiles."""
    powers = [2**power for power in range(most.bit_length())]
    around = [each + offset for each in powers for offset in (-1, 0, 1)]
    others = [factor * each + offset for each in powers for factor, offset in ((3, 0), (3, 1), (5, 0))]
    return sorted({count for count in (*around, *others, most) if 1 <= count <= most})


def compare(multiply: Multiply, most: int) -> tuple[Answer, Tensor]:
    """Compares the bits of products of fewer rows, the first ones and the last ones, with those of `most` rows.

    Returns (`equal`; `unequal_rows`: the row counts with other bits; `first_rows`: the row count from which on all have
    the same bits; the product of all rows).
    """
    whole, counts = multiply(slice(0, most)), row_counts(most)

    def is_equal(span: slice) -> bool:
        return torch.equal(multiply(span), whole[span])

    unequal = [count for count in counts if not (is_equal(slice(0, count)) and is_equal(slice(most - count, most)))]
    first = next((count for count in counts if not unequal or count > unequal[-1]), None)
    return {"equal": not unequal, "unequal_rows": unequal, "first_rows": first}, whole


def of_shape(weight: Tensor, x: Tensor) -> Answer:
    """Returns the answer for a weight [n, k] and all rows of x [rows, k].

    That of `compare`, and `equals_own`: whether the bits are those of one segment of the own kernel; `equals_schedule`:
    those of the weight's own schedule; `unequal_share`: the share of results with other bits than one segment's;
    `times`: µs of the library, of the weight's own product and of one segment for TIMED_ROWS.
    """
    k, device = weight.shape[1], weight.device
    found, whole = compare(lambda span: F.linear(x[span], weight), len(x))
    launches = TritonMatrix(weight).launches
    present = launches.schedule
    single = Schedule(present.block_k, -(-k // present.block_k), 1)

    def own(rows: Tensor, schedule: Schedule) -> functools.partial[Tensor]:
        return multiplying(rows, weight, None, schedule, Launch(TILE, schedule.segments == 1), weight.dtype)

    one_segment = own(x, single)()
    times = []
    for rows in TIMED_ROWS[device.type]:
        calls = {
            "us": functools.partial(F.linear, x[:rows], weight),
            "own_us": functools.partial(linear.product, x[:rows], weight, None, None, launches, weight.dtype),
            "one_segment_us": own(x[:rows], single),
        }
        times.append({"rows": rows} | {name: median_us(device, call) for name, call in calls.items()})
    return {
        **found,
        "equals_own": torch.equal(whole, one_segment),
        "equals_schedule": torch.equal(whole, own(x, present)()),
        "unequal_share": (whole != one_segment).float().mean().item(),
        "times": times,
    }


def of_fp8(weight: Tensor, x: Tensor) -> Answer:
    """Returns the answer of `compare` for torch._scaled_mm of both as e4m3, with random scales of each row and output.

    `exact`: sums in float32; `fast`: sums that the matrix units round. `error` where torch refuses the product.
    """
    packed, packed_weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
    scales = torch.rand(len(x), 1, device=x.device)
    weight_scales = torch.rand(1, len(weight), device=x.device)

    def multiply(span: slice, fast: bool) -> Tensor:
        return torch._scaled_mm(
            packed[span], packed_weight, scale_a=scales[span], scale_b=weight_scales, out_dtype=DTYPE,
            use_fast_accum=fast,
        )  # fmt: skip

    found: Answer = {}
    for mode, fast in (("exact", False), ("fast", True)):
        try:
            found[mode] = compare(functools.partial(multiply, fast=fast), len(x))[0]
        except RuntimeError as error:
            found[mode] = {"error": str(error).splitlines()[0]}
    return found
