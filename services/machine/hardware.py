"""Facts about the whole machine: CPU name, size of the last-level cache, CPU time used. Knows no process."""

import math
import os
import platform

from services.machine import files
from services.machine.files import read

DEFAULT_LAST_CACHE_BYTES = 32 * 1024**2
_TICKS = os.sysconf("SC_CLK_TCK")  # per second, in /proc


def cpu_model() -> str:
    """Returns the CPU's model name; its architecture if the system does not report one."""
    for line in read(files.PROC / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def busy_seconds() -> float:
    """Returns the CPU seconds of all processes since boot, and of steal time; NaN if the system reports none.

    Interrupts are excluded: those of our own messages are not counted for any process either.
    """
    numbers = read(files.PROC / "stat").split()[1:9]
    if len(numbers) < 8:
        return math.nan
    user, nice, system, _, _, _, _, steal = map(int, numbers)
    return (user + nice + system + steal) / _TICKS


def last_cache_bytes() -> int:
    """Returns the size of the largest cache of the first core, shared or not; 32 MiB if the system reports none."""
    sizes = [read(file).strip() for file in files.SYS.glob("devices/system/cpu/cpu0/cache/index*/size")]
    kilobytes = [int(size[:-1]) for size in sizes if size.endswith("K") and size[:-1].isdecimal()]
    return 1024 * max(kilobytes) if kilobytes else DEFAULT_LAST_CACHE_BYTES
