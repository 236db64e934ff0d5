"""Reports which child processes have ended: at once on Linux (pidfds), by polling 20 times a second elsewhere.

The exit status stays with the child's `Popen`, so the caller can still wait for it.
"""

import os
import selectors
import subprocess
import time
from typing import Protocol

POLL_SECONDS = 0.05


class ChildEnds(Protocol):
    """Reports the end of each added child once."""

    def add(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        """Watches a child. No child of the same `name` may be watched already."""

    def wait(self, seconds: float) -> list[str]:
        """Waits until a child ends, at most `seconds`. Returns the names of all children that ended, maybe none."""

    def close(self) -> None: ...


def watch_ends() -> ChildEnds:
    """Returns a PidfdEnds if the system has pidfds, else a PolledEnds."""
    return PidfdEnds() if _has_pidfds() else PolledEnds()


class PidfdEnds:
    """Sleeps until a child ends (pidfd_open(2), Linux 5.3 or later)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        fd = os.pidfd_open(process.pid)
        try:
            self._selector.register(fd, selectors.EVENT_READ, name)
        except OSError:
            os.close(fd)
            raise

    def wait(self, seconds: float) -> list[str]:
        return [self._forget(key) for key, _ in self._selector.select(max(0.0, seconds))]

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._forget(key)
        self._selector.close()

    def _forget(self, key: selectors.SelectorKey) -> str:
        self._selector.unregister(key.fd)
        os.close(key.fd)
        return str(key.data)


class PolledEnds:
    """Polls each child: an end is reported up to POLL_SECONDS late."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self._running[name] = process

    def wait(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while not (ended := [name for name, process in self._running.items() if process.poll() is not None]):
            if (left := deadline - time.monotonic()) <= 0:
                break
            time.sleep(min(POLL_SECONDS, left))
        for name in ended:
            del self._running[name]
        return ended

    def close(self) -> None:
        self._running.clear()


def _has_pidfds() -> bool:
    """Returns whether pidfds work here. False also if the kernel is too old, or a sandbox forbids them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True
