"""This process and its children: how old, how busy, whether stopped, and how many files one may open."""

import math
import os
import resource
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress

from services.machine import files
from services.machine.files import read

SMALLER_OPEN_FILES = 10240  # what macOS grants (its OPEN_MAX) to a process whose hard limit says "unlimited"


def process_age() -> float:
    """Seconds since this process was started, imports and all; 0 where the system does not tell."""
    fields = read(files.PROC / "self/stat").rpartition(")")[2].split()
    if not fields:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Of all threads that it has now, to the nanosecond; NaN where the system does not tell."""
    # /proc/PID/stat counts in hundredths of a second.
    threads = [read(file).split() for file in files.PROC.glob(f"{pid}/task/*/schedstat")]
    return sum(int(fields[0]) for fields in threads if fields) * 1e-9 if threads else math.nan


def stopped_children(pids: Collection[int]) -> set[int]:
    """Those of this process's children that a signal (SIGSTOP, SIGTSTP) has stopped. Reaps none."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        return {pid for pid in pids if _is_stopped(pid)}
    return _stopped_by_ps(pids)


def _is_stopped(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended, and its parent has read its status
        return False


def _stopped_by_ps(pids: Collection[int]) -> set[int]:
    """None where there is no ps either."""
    command = ["ps", "-o", "pid=", "-o", "stat=", "-p", ",".join(map(str, pids))]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return set()
    return {int(pid) for pid, state in map(str.split, lines) if state.startswith("T")}


def allow_open_files() -> None:
    """As many as the system lets this process have; sockets count as files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, max(soft, SMALLER_OPEN_FILES)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
