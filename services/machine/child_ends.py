"""Which child processes have ended: Linux tells it at once; on another system each is asked, twenty times a second.

Neither way takes a child's exit status from its `Popen`, so each can be waited for afterwards as if unwatched.
"""

import os
import selectors
import subprocess
import time
from typing import Protocol

POLL_SECONDS = 0.05


class ChildEnds(Protocol):
    """Tells the end of each child that was added, once."""

    def add(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        """`name` names no child that still runs here."""

    def wait(self, seconds: float) -> list[str]:
        """Names of children that have ended, once there is one; empty when none has after so many seconds."""

    def close(self) -> None: ...


def watch_ends() -> ChildEnds:
    """The quicker way of the two that this system allows."""
    return PidfdEnds() if _has_pidfds() else PolledEnds()


class PidfdEnds:
    """Sleeps until a child ends (pidfd_open(2), Linux 5.3 or later)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, name)

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
    """Asks each child in turn: an end is told up to POLL_SECONDS late."""

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
    """False too where the kernel is too old for them, or a sandbox forbids them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True
