"""Checks of Triton's products: against the twin in float64, and bit for bit over rows, tiles and paths (cases.py)."""

import torch
from torch import Tensor

from kernels.gpu import linear
from kernels.gpu.card import H100
from kernels.gpu.linear_tiling import STEP_BYTES, Launch, Schedule, tiles_of
from kernels.gpu.matrix import EIGHT_BITS, EightBitMatrix, TritonMatrix, matrix_of
from tests.kernels.cases import randn, share_of, tolerance


def strided(device: torch.device, dtype: torch.dtype, rows: int, k: int, seed: int = 0) -> Tensor:
    """Returns random rows [rows, k] of a wider matrix."""
    return randn(device, dtype, rows, k + 8, seed=seed)[:, :k]


def bias_for(device: torch.device, n: int, k: int) -> Tensor:
    """Returns a random bias [n] float32, about as large as the sums of k products."""
    return k**0.5 * randn(device, torch.float32, n, seed=n + k)


def weight_and_twin(
    device: torch.device, dtype: torch.dtype, n: int, k: int, quantization: str | None, seed: int
) -> tuple[TritonMatrix | EightBitMatrix, Tensor]:
    """Returns (a weight of n outputs and k inputs, its dequantised values [n, k] in float64)."""
    weight = randn(device, dtype, n, k, seed=seed)
    matrix = matrix_of([weight[: n // 2], weight[n // 2 :]], quantization)
    if quantization is None:
        return matrix, weight.double()
    numbers, scales = EIGHT_BITS[quantization][1](weight)
    return matrix, numbers.double() * scales.double()[:, None]


def share_of_product(actual: Tensor, x: Tensor, twin: Tensor, bias: Tensor | None = None) -> float:
    """Returns share_of `actual` and x @ twin.T + bias, with a tolerance for k float32 roundings in any order, and for
    rounding the result. An H200's wgmma, which truncates its sums, took 4.3e-7 of the sum of absolute products."""
    added = torch.zeros(len(twin), dtype=torch.float64, device=x.device) if bias is None else bias.double()
    wide = x.double() @ twin.T + added
    expected = wide.float().to(actual.dtype)
    summed = x.double().abs() @ twin.abs().T + added.abs()
    return share_of(actual, expected, 6e-7 * summed + tolerance(expected))


def check_linear(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    n: int,
    k: int,
    quantization: str | None = None,
    seed: int = 0,
) -> float:
    """Compares products with and without a bias, in x's dtype and in float32, with their twin."""
    x, bias = strided(device, dtype, rows, k, seed=seed + rows), bias_for(device, n, k)
    matrix, twin = weight_and_twin(device, dtype, n, k, quantization, seed + n)
    ids = torch.arange(0, n, 3, device=device)
    assert torch.equal(matrix.rows(ids), twin[ids].float().to(dtype)), "the weight's rows differ"
    return max(
        share_of_product(matrix.product(x, wide, added), x, twin, added)
        for wide in (torch.float32, dtype)
        for added in (None, bias)
    )


def check_rows_of_linear(
    device: torch.device, dtype: torch.dtype, rows: list[int], n: int, k: int, quantization: str | None = None
) -> float:
    """Asserts that a row has the same bits in batches of any number of rows, in any order, with and without a bias.
    Returns 0.0."""
    x = randn(device, dtype, max(rows), k)
    matrix = matrix_of([randn(device, dtype, n, k, seed=1)], quantization)
    for bias in (None, bias_for(device, n, k)):
        whole = matrix.product(x, bias=bias)
        for count in rows:
            assert torch.equal(matrix.product(x[:count], bias=bias), whole[:count]), f"{count} rows differ"
            mixed = torch.randperm(max(rows), generator=torch.Generator().manual_seed(count))[:count].to(device)
            assert torch.equal(matrix.product(x[mixed], bias=bias), whole[mixed]), f"{count} rows, mixed, differ"
    return 0.0


def check_paths_of_linear(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    n: int,
    k: int,
    quantization: str | None = None,
    seed: int = 0,
) -> float:
    """Asserts that every tile shape, with and without one program per segment, gives the same bits, for several
    schedules, with a bias. Returns the largest error as a share of the tolerance."""
    x, bias = strided(device, dtype, rows, k, seed=seed), bias_for(device, n, k)
    matrix, twin = weight_and_twin(device, dtype, n, k, quantization, seed + 1)
    weight, scales = (matrix.weight, None) if isinstance(matrix, TritonMatrix) else (matrix.qweight, matrix.scales)
    block_k, worst, counts = STEP_BYTES // dtype.itemsize, 0.0, set()
    num_steps = -(-k // block_k)
    for steps in {1, 2, 3, -(-num_steps // 2), num_steps}:
        schedule = Schedule(block_k, steps, -(-num_steps // steps))
        counts.add(schedule.segments)
        found = [
            linear.multiply(x, weight, scales, bias, schedule, torch.float32, Launch(tile, split))
            for tile in tiles_of(H100, dtype)
            for split in (True, False)
        ]
        worst = max(worst, share_of_product(found[0], x, twin, bias))
        for other in found[1:]:
            assert torch.equal(other, found[0]), f"tiles or paths differ in {schedule.segments} segments"
    assert num_steps in counts
    return worst
