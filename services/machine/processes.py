"""Facts about this process and its children: age, CPU time, terminal, stopped state; and the limit of open files."""

import math
import os
import resource
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress

from services.machine import files
from services.machine.files import read

SMALLER_OPEN_FILES = 10240  # what macOS grants (its OPEN_MAX) if the hard limit is "unlimited"


def process_age() -> float:
    """Returns the seconds since this process started, imports included; 0 if the system does not report it."""
    fields = read(files.PROC / "self/stat").rpartition(")")[2].split()
    if not fields:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process's present threads, in ns resolution; NaN if the system reports none."""
    # /proc/PID/stat has a resolution of 10 ms only.
    threads = [read(file).split() for file in files.PROC.glob(f"{pid}/task/*/schedstat")]
    return sum(int(fields[0]) for fields in threads if fields) * 1e-9 if threads else math.nan


def name_process(name: str) -> None:
    """Sets the name of this process in `ps -o comm` and `top`, at most 15 characters; no effect but on Linux."""
    with suppress(OSError):
        (files.PROC / "self/comm").write_text(name)


def has_terminal() -> bool:
    """Returns whether this process has a controlling terminal; no longer once that was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def stopped_children(pids: Collection[int]) -> set[int]:
    """Returns the pids among these children that a signal (SIGSTOP, SIGTSTP) has stopped. Reaps none."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        return {pid for pid in pids if _is_stopped(pid)}
    return _stopped_by_ps(pids)


def _is_stopped(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended and was reaped
        return False


def _stopped_by_ps(pids: Collection[int]) -> set[int]:
    """Returns what `stopped_children` returns, from the output of ps; empty if there is no ps."""
    command = ["ps", "-o", "pid=", "-o", "stat=", "-p", ",".join(map(str, pids))]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return set()
    return {int(pid) for pid, state in map(str.split, lines) if state.startswith("T")}


def reap_orphans(own: Collection[int]) -> None:
    """Reaps ended processes that this one has inherited, as the first process of a container does: nothing else would.
    `own`: the pids of its own children; their ends are for what has started them.

    Looks no further than the first own child that has ended: the next call does."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13; there is no container
        return
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def allow_open_files() -> None:
    """Raises this process's limit of open files, sockets included, to its hard limit.

    If the system refuses that, raises it to SMALLER_OPEN_FILES; if it refuses both, changes nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, max(soft, SMALLER_OPEN_FILES)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return
