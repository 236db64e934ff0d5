"""Weights on the GPU: products of no rows; quantised: exact conversion of each 8-bit value; zeros, NaN and infinity."""

import pytest
import torch

from kernels.gpu.matrix import EightBitMatrix, matrix_of
from tests.kernels.gpu_cases import DEVICE, DTYPES


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_no_rows_give_no_rows(quantization: str | None) -> None:
    """A step whose prompts all go on in the next one samples nothing."""
    matrix = matrix_of([torch.ones(70, 600, dtype=torch.bfloat16, device=DEVICE)], quantization)
    out = matrix.product(torch.empty(0, 600, dtype=torch.bfloat16, device=DEVICE), torch.float32)
    assert out.shape == (0, 70) and out.dtype == torch.float32 and out.device.type == DEVICE.type


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # the interpreter's
@pytest.mark.parametrize("quantization", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_zeros_and_rows_that_are_not_finite(dtype: torch.dtype, quantization: str) -> None:
    weight = torch.ones(4, 33, dtype=dtype, device=DEVICE)
    weight[1], weight[2, 32], weight[3, 7] = 0, float("nan"), float("-inf")
    matrix = matrix_of([weight], quantization)
    out = matrix.product(torch.ones(3, 33, dtype=dtype, device=DEVICE), torch.float32)
    assert out[:, 0].tolist() == pytest.approx([33] * 3) and out[:, 1].tolist() == [0, 0, 0]
    assert not out[:, 2:].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_eight_bits_is_widened_exactly(dtype: torch.dtype) -> None:
    """All values of float8_e4m3fn and int8, with a scale of 1."""
    numbers = torch.arange(256, dtype=torch.int16, device=DEVICE).to(torch.uint8)[None]
    fp8 = torch.where((numbers & 127) == 127, 0, numbers).view(torch.float8_e4m3fn)  # 127: not a number
    for kind in (numbers.view(torch.int8), fp8):
        matrix = EightBitMatrix(kind, torch.ones(1, device=DEVICE), dtype)
        identity = torch.eye(256, dtype=dtype, device=DEVICE)
        assert torch.equal(matrix.product(identity, torch.float32), kind.float().T)
