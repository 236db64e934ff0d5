"""Limits that a process sets on itself, and the most memory that it has had."""

import contextlib
import resource
import sys

from services.machine import files
from services.machine.files import read

OOM_SCORE = 500  # of 1,000: the kernel ends such a process before those with a lower one


def limit_memory(more_bytes: int) -> None:
    """Limits the private memory of this process to what it has now and `more_bytes`; changes nothing beside Linux."""
    lines = read(files.PROC / "self/status").splitlines()
    now = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
    if now is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (now + more_bytes, now + more_bytes))


def offer_to_oom_killer(score: int = OOM_SCORE) -> None:
    """Makes the kernel end this process before others if the machine runs out of memory; nothing beside Linux."""
    with contextlib.suppress(OSError):
        (files.PROC / "self/oom_score_adj").write_text(str(score))


def peak_bytes() -> int:
    """Returns the most resident memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
