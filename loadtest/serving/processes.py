"""Reads /proc: the descendants of this process, and the CPU time that other processes used. Also adopts and reaps
descendants. Linux only."""

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
_TICKS = os.sysconf("SC_CLK_TCK")  # per second, in /proc


@dataclass(frozen=True)
class Process:
    parent: int
    cpu: float  # seconds, with those of its reaped children


@dataclass(frozen=True)
class Usage:
    """CPU time used until one moment."""

    moment: float  # seconds, monotonic
    machine: float  # CPU seconds of all processes since boot, and those stolen by the hypervisor
    own: float  # CPU seconds of this process and its descendants, running or ended


def adopt_orphans() -> None:
    """Makes this process a subreaper: orphaned descendants become its children. Raises Fatal outside Linux."""
    if not _PROC.joinpath("self/stat").exists():
        raise Fatal("servers are started and watched through /proc, which only Linux has")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Returns the pids of all descendants of `root`, zombies included."""
    return _descendants(root, _processes())


def reap(pids: list[int]) -> None:
    """Reaps those of `pids` that are ended children of this process."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def usage() -> Usage:
    found, root = _processes(), os.getpid()
    own = sum(found[pid].cpu for pid in [root, *_descendants(root, found)])
    return Usage(time.monotonic(), busy_seconds(), own)


def foreign_share(before: Usage, after: Usage, cores: int) -> float:
    """Returns the share of the machine's CPU time that other processes used in between; 1.0 is all cores."""
    others = (after.machine - before.machine) - (after.own - before.own)
    return max(0.0, others) / ((after.moment - before.moment) * cores)


def _processes() -> dict[int, Process]:
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # the process has ended meanwhile
                fields = folder.joinpath("stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
                found[int(folder.name)] = Process(int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)
    return found


def _descendants(root: int, processes: dict[int, Process]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows in the loop
        found += children.get(pid, ())
    return found
