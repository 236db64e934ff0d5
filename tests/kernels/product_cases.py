"""Checks of Triton's products: against the twin in float64, and bit for bit over rows, tiles and paths (cases.py)."""

import torch
from torch import Tensor

from kernels.gpu import linear
from kernels.gpu.matrix import EIGHT_BITS, EightBitMatrix, TritonMatrix, matrix_of
from tests.kernels.cases import randn, share_of, tolerance


def strided(device: torch.device, dtype: torch.dtype, rows: int, k: int, seed: int = 0) -> Tensor:
    """Returns random rows [rows, k] of a wider matrix."""
    return randn(device, dtype, rows, k + 8, seed=seed)[:, :k]


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


def share_of_product(actual: Tensor, x: Tensor, twin: Tensor) -> float:
    """Returns share_of `actual` and x @ twin.T, with a tolerance for k float32 roundings in any order, and for rounding
    the result."""
    wide = x.double() @ twin.T
    expected = wide.float().to(actual.dtype)
    summed = x.double().abs() @ twin.abs().T
    return share_of(actual, expected, 4e-7 * summed + tolerance(expected))


def check_linear(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    n: int,
    k: int,
    quantization: str | None = None,
    seed: int = 0,
) -> float:
    x = strided(device, dtype, rows, k, seed=seed + rows)
    matrix, twin = weight_and_twin(device, dtype, n, k, quantization, seed + n)
    ids = torch.arange(0, n, 3, device=device)
    assert torch.equal(matrix.rows(ids), twin[ids].float().to(dtype)), "the weight's rows differ"
    return max(share_of_product(matrix.product(x, wide), x, twin) for wide in (torch.float32, dtype))


def check_rows_of_linear(
    device: torch.device, dtype: torch.dtype, rows: list[int], n: int, k: int, quantization: str | None = None
) -> float:
    """Asserts that a row has the same bits in batches of any number of rows, in any order. Returns 0.0."""
    x = randn(device, dtype, max(rows), k)
    matrix = matrix_of([randn(device, dtype, n, k, seed=1)], quantization)
    whole = matrix.product(x)
    for count in rows:
        assert torch.equal(matrix.product(x[:count]), whole[:count]), f"{count} rows differ"
        mixed = torch.randperm(max(rows), generator=torch.Generator().manual_seed(count))[:count].to(device)
        assert torch.equal(matrix.product(x[mixed]), whole[mixed]), f"{count} rows, mixed, differ"
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
    schedules. Returns the largest error as a share of the tolerance."""
    x = strided(device, dtype, rows, k, seed=seed)
    matrix, twin = weight_and_twin(device, dtype, n, k, quantization, seed + 1)
    weight, scales = (matrix.weight, None) if isinstance(matrix, TritonMatrix) else (matrix.qweight, matrix.scales)
    tiles = [linear.FEW, linear.SOME] + [linear.MANY] * (dtype != torch.float32)
    block_k, worst, counts = linear.STEP_BYTES // dtype.itemsize, 0.0, set()
    num_steps = -(-k // block_k)
    for steps in {1, 2, 3, -(-num_steps // 2), num_steps}:
        schedule = linear.Schedule(block_k, steps, -(-num_steps // steps))
        counts.add(schedule.segments)
        found = [
            linear.multiply(x, weight, scales, schedule, torch.float32, tile, split)
            for tile in tiles
            for split in (True, False)
        ]
        worst = max(worst, share_of_product(found[0], x, twin))
        for other in found[1:]:
            assert torch.equal(other, found[0]), f"tiles or paths differ in {schedule.segments} segments"
    assert num_steps in counts
    return worst
