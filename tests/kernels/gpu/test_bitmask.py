"""Triton's bitmask equals its twin."""

import pytest

from kernels.gpu import bitmask
from tests.kernels.bitmask_cases import check_bitmask
from tests.kernels.gpu_cases import DEVICE


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1024, 2100])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 0.99])
def test_bitmask(vocab: int, density: float) -> None:
    check_bitmask(bitmask.apply_bitmask, DEVICE, 5, vocab, density, seed=vocab)
