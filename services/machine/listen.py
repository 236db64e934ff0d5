"""Listening sockets. The launcher binds that of HTTP first, so that a port or path in use is reported at once."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from services.errors import Fatal
from services.machine import MAX_SOCKET_PATH, authority, loopback

BACKLOG = 2048


def listen(host: str | None, port: int) -> socket.socket:
    """Returns a non-blocking listening socket; `host` None: the loopback address. Raises Fatal if it cannot bind."""
    host = (host or loopback()).removeprefix("[").removesuffix("]")
    try:
        front = _open(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise Fatal(f"cannot listen on {authority(host, port)}: {getattr(error, 'strerror', None) or error}") from error
    front.setblocking(False)
    return front


def _open(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on the first of the host's addresses that can be bound.

    Raises OSError, or UnicodeError for an invalid host name.
    """
    failure = OSError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        front = socket.socket(family, kind, protocol)
        try:
            front.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            front.bind(address)
            front.listen(BACKLOG)
            return front
        except OSError as error:
            front.close()
            failure = error
    raise failure


@contextlib.contextmanager
def listen_unix(path: str) -> Iterator[socket.socket]:
    """Yields a non-blocking listening Unix socket that only this user may connect to (mode 0600).

    A socket file that no process listens on is replaced. At the end the file is removed, unless another process has
    replaced it. Raises Fatal if the path cannot be bound.
    """
    try:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise OSError(None, f"the path is longer than {MAX_SOCKET_PATH} bytes")
        _remove_stale(path)
        front = _open_unix(path)
        bound = os.lstat(path)
    except OSError as error:
        raise Fatal(f"cannot listen on {path}: {error.strerror or error}") from error
    try:
        yield front
    finally:
        front.close()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(path), bound):
                Path(path).unlink()


def _open_unix(path: str) -> socket.socket:
    front = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # `bind` creates the file with its mode: there is no moment in which others may connect
    try:
        front.bind(path)
        front.listen(BACKLOG)
        front.setblocking(False)
    except OSError:
        front.close()
        raise
    finally:
        os.umask(before)
    return front


def _remove_stale(path: str) -> None:
    """Removes a socket file that no process listens on. Raises OSError for one in use, and for any other file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(None, "the file exists and is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
        except BlockingIOError:
            raise OSError(None, "another process listens on it") from None
        else:
            raise OSError(None, "another process listens on it")
