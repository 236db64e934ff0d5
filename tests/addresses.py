"""The address on which tests serve: the loopback address, IPv6 if the machine has no IPv4."""

import socket

from services.machine import authority, loopback

HOST = loopback()


def at(port: int) -> str:
    """Returns host:port as in a URL."""
    return authority(HOST, port)


def open_server(backlog: int | None = None) -> socket.socket:
    """Returns a socket that listens on a free port."""
    return socket.create_server((HOST, 0), family=socket.AF_INET6 if ":" in HOST else socket.AF_INET, backlog=backlog)
