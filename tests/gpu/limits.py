"""What this card can do at best, measured: the yardsticks of the timings."""

import functools
from collections.abc import Callable

import torch

READ_BYTES = 2 * 2**30
MATRIX_SIZE = 8192
REPEATS = 10


@functools.cache
def memory_rate(device: torch.device) -> float:
    """Bytes per second of a large read: the sum of a vector."""
    vector = torch.ones(READ_BYTES // 4, device=device)
    return READ_BYTES / _seconds(lambda: vector.sum(), device)


@functools.cache
def matrix_rate(device: torch.device) -> float:
    """Operations per second of a large square product in bf16."""
    one, other = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * MATRIX_SIZE**3 / _seconds(lambda: one @ other, device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The least of some calls, by the device's clock."""
    call()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        times.append(begin.elapsed_time(end) / 1000)
    return min(times)
