"""The time of a kernel on a GPU."""

import statistics
import time
from collections.abc import Callable

import torch

from loadtest.gpu.table import Measured

REPEATS = 20
FLUSH_BYTES = 256 * 2**20
BUSY_CYCLES = 20_000_000  # about 10 ms


def median_us(device: torch.device, call: Callable[[], object]) -> float:
    """Returns the microseconds of one call: the median of REPEATS, each between two CUDA events.

    The GPU is kept busy while the host queues the calls; else the host's time would be measured. The L2 cache is
    overwritten before each call, as another layer would do. On a CPU, returns the wall time of a single call, for the
    small forms of checks.
    """
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    for _ in range(3):
        call()
    torch.cuda.synchronize(device)
    pairs = []
    torch.cuda._sleep(BUSY_CYCLES)
    for _ in range(REPEATS):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize(device)
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) * 1000


def shown(device: torch.device, detail: Measured) -> str:
    """Returns the detail. On a CPU, where a check only runs its code to the end, returns a text without figures."""
    if device.type == "cuda":
        return detail
    return f"small form, nothing is timed on a CPU: {', '.join(detail.data)}"
