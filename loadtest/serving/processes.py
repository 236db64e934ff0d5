"""What /proc says: who runs beneath this process, and how much of the machine's CPU time went to others. Linux only."""

import ctypes
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.errors import Fatal
from services.machine import busy_seconds

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, in a second


@dataclass(frozen=True)
class Process:
    parent: int
    cpu: float  # seconds, with those of the children that it waited for


@dataclass(frozen=True)
class Usage:
    """At one moment."""

    moment: float  # seconds, monotonic
    machine: float  # CPU seconds of everybody since the start of the machine, and those that its host took away
    ours: float  # CPU seconds of this process and all beneath it, living or dead


def adopt_orphans() -> None:
    """From now on a process beneath this one stays beneath it when its parent ends. Raises Fatal outside Linux."""
    if not _PROC.joinpath("self/stat").exists():
        raise Fatal("servers are started and watched by means of /proc, which only Linux has")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def beneath(root: int) -> list[int]:
    """Every process that descends from `root`, zombies among them."""
    return _beneath(root, _processes())


def reap(pids: list[int]) -> None:
    """Lets those of this process's children go that have ended."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def usage() -> Usage:
    found, own = _processes(), os.getpid()
    ours = sum(found[pid].cpu for pid in [own, *_beneath(own, found)])
    return Usage(time.monotonic(), busy_seconds(), ours)


def foreign_share(before: Usage, after: Usage, cores: int) -> float:
    """Share of the machine's CPU time in between that others used: 1.0 is all of its cores."""
    others = (after.machine - before.machine) - (after.ours - before.ours)
    return max(0.0, others) / ((after.moment - before.moment) * cores)


def _processes() -> dict[int, Process]:
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                fields = folder.joinpath("stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
                found[int(folder.name)] = Process(int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    return found


def _beneath(root: int, processes: dict[int, Process]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows as it goes
        found += children.get(pid, ())
    return found
