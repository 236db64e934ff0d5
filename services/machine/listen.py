"""Listening TCP sockets. The launcher binds the HTTP port first, so that a port in use is reported at once."""

import socket

from services.errors import Fatal
from services.machine import authority, loopback

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
