"""Where tests serve: this machine's loopback address, of IPv6 where it has none of IPv4."""

import socket

from services.machine import authority, loopback

HOST = loopback()


def at(port: int) -> str:
    """host:port, as a URL has it."""
    return authority(HOST, port)


def open_server(backlog: int | None = None) -> socket.socket:
    """Listens on a free port."""
    return socket.create_server((HOST, 0), family=socket.AF_INET6 if ":" in HOST else socket.AF_INET, backlog=backlog)
