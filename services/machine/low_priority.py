"""Work that must not take time from other processes of this machine."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from services.machine import files

NICENESS = 10  # a tenth of the share of others
AGAIN_SECONDS = 0.05
T = TypeVar("T")


def at_low_priority(work: Callable[[], T]) -> T:
    """Returns what `work` returns, or raises its error; it runs in a thread with niceness NICENESS.

    On Linux a thread has its own niceness, which needs a privilege to be lowered again: the calling thread keeps its
    own. Where the kernel shares the processors among sessions (autogroup, man 7 sched), a niceness counts within a
    session only; so a process that has begun its session raises the session's meanwhile. Threads that `work` starts
    keep the niceness. On other systems, or if the system refuses, `work` just runs.
    """
    if sys.platform != "linux":
        return work()
    with _nice_session(), ThreadPoolExecutor(1, "low-priority", _be_nice) as executor:
        return executor.submit(work).result()


def _be_nice() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


@contextmanager
def _nice_session() -> Iterator[None]:
    path = files.PROC / "self/autogroup"
    is_nice = os.getsid(0) == os.getpid() and _write(path, NICENESS)
    try:
        yield
    finally:
        if is_nice:
            _write(path, 0)


def _write(path: Path, niceness: int) -> bool:
    """Sets a session's niceness; returns whether the system did. It grants ten changes a second, of all sessions, and
    puts others off (EAGAIN)."""
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        while True:
            try:
                os.write(fd, str(niceness).encode())
            except BlockingIOError:
                time.sleep(AGAIN_SECONDS)
            except OSError:
                return False
            else:
                return True
    finally:
        os.close(fd)
