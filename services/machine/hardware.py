"""This machine as a whole: its CPU's name, the size of its last cache, and how busy it has been. Knows no process."""

import math
import os
import platform

from services.machine import files
from services.machine.files import read

DEFAULT_LAST_CACHE_BYTES = 32 * 1024**2
_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, in a second


def cpu_model() -> str:
    """As its maker calls it; where that is not told, its architecture."""
    for line in read(files.PROC / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def busy_seconds() -> float:
    """CPU time of all processes since the machine's start, and what its host took away; NaN where that is not told.

    Without interrupts: those of our own messages belong to no process.
    """
    numbers = read(files.PROC / "stat").split()[1:9]
    if len(numbers) < 8:
        return math.nan
    user, nice, system, _, _, _, _, steal = map(int, numbers)
    return (user + nice + system + steal) / _TICKS


def last_cache_bytes() -> int:
    """Of the largest cache that the first core uses, shared or not; 32 MiB where that is not told."""
    sizes = [read(file).strip() for file in files.SYS.glob("devices/system/cpu/cpu0/cache/index*/size")]
    kilobytes = [int(size[:-1]) for size in sizes if size.endswith("K") and size[:-1].isdecimal()]
    return 1024 * max(kilobytes) if kilobytes else DEFAULT_LAST_CACHE_BYTES
