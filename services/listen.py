"""Listening sockets. The launcher opens the HTTP port before anything else, so that one in use is told at once."""

import socket

from services.errors import Fatal
from services.machine import authority, loopback

BACKLOG = 2048


def listen(host: str | None, port: int) -> socket.socket:
    """A listening TCP socket; None is the loopback address. Raises Fatal when the address cannot be had."""
    host = host or loopback()
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        front = socket.socket(family, kind, protocol)
        front.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        front.bind(address)
        front.listen(BACKLOG)
    except OSError as error:
        raise Fatal(f"cannot listen on {authority(host, port)}: {error.strerror or error}") from error
    front.setblocking(False)
    return front
