"""What this process may use: of the machine, or less where control groups around it (version 2, Linux) have limits."""

import math
import os
from pathlib import Path

from services.machine import files
from services.machine.files import read

UNTOLD_SHARE = 0.5  # of the machine's memory: taken as free where the system tells only how much there is
DEFAULT_BYTES = 4 * 1024**3  # taken as free where it does not even tell that


def available_cores() -> int:
    """At least 1: those of the machine that this process may use, or fewer where a control group has a quota."""
    return max(1, int(min([_usable_cores(), *map(_quota, _groups())])))


def available_bytes() -> int:
    """Memory that is free for a process: of the machine, or less where a control group around it has a limit."""
    return int(min([_free_bytes(), *map(_left_in, _groups())]))


def _usable_cores() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # Linux alone binds processes to cores
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def _free_bytes() -> int:
    for line in read(files.PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    # Without the page cache, which would go when memory is needed: less than there is.
    free = _sysconf("SC_AVPHYS_PAGES") * _sysconf("SC_PAGE_SIZE")
    return free or int(UNTOLD_SHARE * _sysconf("SC_PHYS_PAGES") * _sysconf("SC_PAGE_SIZE")) or DEFAULT_BYTES


def _sysconf(name: str) -> int:
    """0 where the system does not know it."""
    return max(0, os.sysconf(name)) if name in os.sysconf_names else 0


def own_group() -> Path:
    """This process's, relative to the mount; the mount itself where there is none."""
    lines = read(files.PROC / "self/cgroup").splitlines()
    return Path(next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), ""))


def _groups() -> list[Path]:
    """The process's own and those around it."""
    mount, own = files.SYS / "fs/cgroup", own_group()
    return [mount / own, *(mount / outer for outer in own.parents)]


def _quota(folder: Path) -> float:
    """In cores; infinity without one."""
    quota, _, period = read(folder / "cpu.max").strip().partition(" ")
    return math.inf if quota in ("", "max") else int(quota) / int(period)


def _left_in(folder: Path) -> float:
    """In bytes; infinity without a limit. The page cache counts as free, for it goes when memory is needed."""
    limit = read(folder / "memory.max").strip()
    if limit in ("", "max"):  # the root has none
        return math.inf
    try:
        used = int((folder / "memory.current").read_text(encoding="utf-8"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
    except OSError:
        return math.inf
    return max(0, int(limit) - used + int(stat["active_file"]) + int(stat["inactive_file"]))
