"""The time of a kernel on a GPU."""

import statistics
from collections.abc import Callable

import torch

REPEATS = 20
FLUSH_BYTES = 256 * 2**20
BUSY_CYCLES = 20_000_000  # about 10 ms


def median_us(device: torch.device, call: Callable[[], object]) -> float:
    """Returns the microseconds of one call: the median of REPEATS, each between two CUDA events.

    The GPU is kept busy while the host queues the calls; else the host's time would be measured. The L2 cache is
    overwritten before each call, as another layer would do.
    """
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
