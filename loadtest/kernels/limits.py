"""The highest rates of this machine, by small probes: the limits that `tandem bench kernels` compares with.

Each rate is the best of several tries, because other load only makes a probe slower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.machine import busy_seconds, last_cache_bytes

CACHE_BYTES = 128 * 1024  # of each operand of a copy that stays in a core's own caches
MATRIX_SIZE = 1024
MATRIX_TYPES = (torch.bfloat16, torch.float32)  # without instructions for bfloat16, float32 is the faster one
MIN_TRIES = 10
PROBE_SECONDS = 0.3


@dataclass(frozen=True)
class Work:
    """The least that one call of a kernel must do."""

    cold_bytes: int = 0  # read from memory
    warm_bytes: int = 0  # read from or written to a cache
    operations: int = 0  # multiplications and additions of matrix products


@dataclass(frozen=True)
class Limits:
    """Measured rates of all threads together: bytes per second from memory and within caches, and operations per second
    of matrix products."""

    memory_bytes: float
    cache_bytes: float
    operations: float

    def seconds(self, work: Work) -> float:
        """Returns the least seconds that `work` can take at these rates."""
        return max(
            work.cold_bytes / self.memory_bytes,
            work.warm_bytes / self.cache_bytes,
            work.operations / self.operations,
        )

    def raised(self, work: Work, seconds: float) -> "Limits":
        """Returns limits that are no lower than the rates of a call that did `work` in `seconds`.

        A probe may miss the machine's highest rate. The cache rate stays.
        """
        return Limits(
            max(self.memory_bytes, work.cold_bytes / seconds),
            self.cache_bytes,
            max(self.operations, work.operations / seconds),
        )


def probe(threads: int) -> Limits:
    """Returns the rates of a large read, a small copy and square products. Leaves torch at `threads` threads."""
    torch.set_num_threads(1)
    cache_rate = threads * _cache_rate()  # each core has caches of its own
    torch.set_num_threads(threads)
    return Limits(_memory_rate(2 * last_cache_bytes()), cache_rate, max(map(_matrix_rate, MATRIX_TYPES)))


def _memory_rate(num_bytes: int) -> float:
    """Returns the bytes per second of the dot product of two vectors of `num_bytes` each."""
    one, other = (torch.ones(num_bytes // 4) for _ in range(2))
    return 2 * num_bytes / _best_seconds(lambda: torch.dot(one, other))


def _cache_rate() -> float:
    one, other = (torch.ones(CACHE_BYTES // 4) for _ in range(2))
    return 2 * CACHE_BYTES / _best_seconds(lambda: one.copy_(other))


def _matrix_rate(dtype: torch.dtype) -> float:
    one, other = (torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=dtype) for _ in range(2))
    return 2 * MATRIX_SIZE**3 / _best_seconds(lambda: torch.mm(one, other))


def _best_seconds(run: Callable[[], object]) -> float:
    times: list[float] = []
    deadline = time.perf_counter() + PROBE_SECONDS
    while len(times) < MIN_TRIES or time.perf_counter() < deadline:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def other_cpu_seconds() -> float:
    """Returns the CPU seconds, since an arbitrary moment, of all other processes and of other virtual machines.

    NaN where the system does not count them.
    """
    return busy_seconds() - time.process_time()
