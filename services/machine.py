"""What /proc says of this machine as a whole: its CPU's name, and how busy it has been. Knows no process."""

import os
import platform
from pathlib import Path

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, in a second


def cpu_model() -> str:
    """As its maker calls it; where that is not told, its architecture."""
    file = _PROC / "cpuinfo"
    for line in file.read_text().splitlines() if file.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def busy_seconds() -> float:
    """CPU time of everybody since the machine's start, and what its host took away; 0: unknown.

    Without interrupts: those of our own messages belong to no process.
    """
    file = _PROC / "stat"
    if not file.exists():
        return 0.0
    user, nice, system, _, _, _, _, steal = map(int, file.read_text().split()[1:9])
    return (user + nice + system + steal) / _TICKS
