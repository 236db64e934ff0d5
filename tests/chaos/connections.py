"""Cuts the connections of another process: duplicates its sockets into this one, and shuts them down.

Needs the right to trace that process (root, or a parent without Yama): pidfd_getfd(2).
"""

import ctypes
import os
import socket
from collections.abc import Container
from pathlib import Path

SYS_PIDFD_GETFD = 438  # the same number on every architecture
_libc = ctypes.CDLL(None, use_errno=True)


def duplicate(pidfd: int, fd: int) -> int:
    """Returns a descriptor of this process for `fd` of that one. Raises OSError."""
    found = int(_libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def cut(pid: int, listeners: Container[str]) -> int:
    """Shuts down every connection that the process has to or from the Unix sockets at `listeners`. Returns how many.
    Raises OSError if the process has ended or may not be traced."""
    pidfd = os.pidfd_open(pid)
    try:
        return sum(_shut_down(pidfd, fd, listeners) for fd in _sockets(pid))
    finally:
        os.close(pidfd)


def _sockets(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(path.readlink()).startswith("socket:"):
                found.append(int(path.name))
        except FileNotFoundError:  # closed in the meantime
            continue
    return found


def _shut_down(pidfd: int, fd: int, listeners: Container[str]) -> bool:
    try:
        duplicated = socket.socket(fileno=duplicate(pidfd, fd))
    except OSError:  # closed in the meantime
        return False
    with duplicated:
        if duplicated.family != socket.AF_UNIX:
            return False
        try:
            ends = (duplicated.getsockname(), duplicated.getpeername())  # the second raises for a listening socket
            if not any(end in listeners for end in ends):
                return False
            duplicated.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True
