"""The cores and the memory that this process may use: the machine's, or the limits of its cgroups (v2, Linux)."""

import math
import os
from pathlib import Path

from services.machine import files
from services.machine.files import read

ASSUMED_FREE_SHARE = 0.5  # of the machine's memory, if the system reports only its size
DEFAULT_BYTES = 4 * 1024**3  # if the system reports nothing


def available_cores() -> int:
    """Returns the number of cores this process may use, at least 1: its CPU affinity, or a lower cgroup quota."""
    return max(1, int(min([_usable_cores(), *map(_quota, _groups())])))


def available_bytes() -> int:
    """Returns the free memory in bytes: the machine's, or less if a cgroup of this process has a limit."""
    return int(min([_free_bytes(), *map(_left_in, _groups())]))


def _usable_cores() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def _free_bytes() -> int:
    for line in read(files.PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    # An underestimate: it excludes the page cache, which the system frees on demand.
    free = _sysconf("SC_AVPHYS_PAGES") * _sysconf("SC_PAGE_SIZE")
    return free or int(ASSUMED_FREE_SHARE * _sysconf("SC_PHYS_PAGES") * _sysconf("SC_PAGE_SIZE")) or DEFAULT_BYTES


def _sysconf(name: str) -> int:
    """Returns the value of os.sysconf(name), at least 0; 0 if the system does not define `name`."""
    return max(0, os.sysconf(name)) if name in os.sysconf_names else 0


def own_group() -> Path:
    """Returns the path of this process's cgroup, relative to the mount; empty without one."""
    lines = read(files.PROC / "self/cgroup").splitlines()
    return Path(next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), ""))


def _groups() -> list[Path]:
    """Returns the directories of this process's cgroup and of the cgroups above it."""
    mount, own = files.SYS / "fs/cgroup", own_group()
    return [mount / own, *(mount / outer for outer in own.parents)]


def _quota(folder: Path) -> float:
    """Returns the CPU quota of a cgroup in cores; infinity without one."""
    quota, _, period = read(folder / "cpu.max").strip().partition(" ")
    return math.inf if quota in ("", "max") else int(quota) / int(period)


def _left_in(folder: Path) -> float:
    """Returns the bytes left below the memory limit of a cgroup; infinity without a limit.

    The page cache counts as free: the system frees it on demand.
    """
    limit = read(folder / "memory.max").strip()
    if limit in ("", "max"):  # the root cgroup has no file
        return math.inf
    try:
        used = int((folder / "memory.current").read_text(encoding="utf-8"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
    except OSError:
        return math.inf
    return max(0, int(limit) - used + int(stat["active_file"]) + int(stat["inactive_file"]))
