"""What a container may use: the limits of the control groups around this process (version 2, Linux)."""

import math
import os
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """At least 1: those of the machine that this process may use, or fewer where a control group has a quota."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, int(min([allowed, *map(_quota, _groups())])))


def available_bytes() -> int:
    """Memory that is free for a process: of the machine, or less where a control group around it has a limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return int(min([free, *map(_left_in, _groups())]))


def own_group() -> Path:
    """This process's, relative to the mount; the mount itself where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    return Path(next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), ""))


def _groups() -> list[Path]:
    """The process's own and those around it."""
    own = own_group()
    return [MOUNT / own, *(MOUNT / outer for outer in own.parents)]


def _quota(folder: Path) -> float:
    """In cores; infinity without one."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except OSError:  # the root has none
        return math.inf
    return math.inf if quota == "max" else int(quota) / int(period)


def _left_in(folder: Path) -> float:
    """In bytes; infinity without a limit. The page cache counts as free, for it goes when memory is needed."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return math.inf
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root has none
        return math.inf
    return max(0, int(limit) - used + int(stat["active_file"]) + int(stat["inactive_file"]))
