"""The highest memory and matrix rates of this GPU, measured. Most timings in this package are compared with them.

The memory rate is the higher one of a large read and a large copy by torch. The matrix rate is that of a large square
product by torch in bf16. Both are timed as kernels are, once in a process.
"""

import functools
from dataclasses import dataclass

import torch

from loadtest.gpu.shapes import DTYPE
from loadtest.gpu.table import Check, Measured
from loadtest.gpu.timings import median_us, shown

READ_BYTES = {"cuda": 2**30, "cpu": 2**20}
MATRIX_SIZE = {"cuda": 8192, "cpu": 64}


@dataclass(frozen=True)
class Limits:
    read: float  # bytes per second
    copy: float  # bytes per second, read and written
    matrix: float  # operations per second

    @property
    def memory(self) -> float:
        return max(self.read, self.copy)


def checks(device: torch.device) -> list[Check]:
    return [Check("limits of this GPU", lambda: shown(device, describe(limits(device))))]


@functools.cache
def limits(device: torch.device) -> Limits:
    return Limits(*memory_rates(device), matrix_rate(device))


def memory_rates(device: torch.device) -> tuple[float, float]:
    size = READ_BYTES[device.type]
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    read, copy = median_us(device, source.sum), median_us(device, lambda: target.copy_(source))
    return size / read * 1e6, 2 * size / copy * 1e6


def matrix_rate(device: torch.device) -> float:
    size = MATRIX_SIZE[device.type]
    left, right = (torch.randn(size, size, dtype=DTYPE, device=device) for _ in range(2))
    return 2 * size**3 / median_us(device, lambda: left @ right) * 1e6


def describe(found: Limits) -> Measured:
    text = f"read {found.read / 1e9:.0f} GB/s, copy {found.copy / 1e9:.0f} GB/s, bf16 {found.matrix / 1e12:.0f} TFLOP/s"
    return Measured(text, read=found.read, copy=found.copy, matrix=found.matrix)
