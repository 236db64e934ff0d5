"""The address on which tests serve: the loopback address, IPv6 if the machine has no IPv4."""

import contextlib
import random
import socket

from services.machine import authority, loopback

HOST = loopback()
# Below the ports that systems give to outgoing connections: one of those could take it before the server has it.
PORTS = range(15_000, 32_768)


def at(port: int) -> str:
    """Returns host:port as in a URL."""
    return authority(HOST, port)


def open_server(backlog: int | None = None) -> socket.socket:
    """Returns a socket that listens on a free port."""
    return _listen(0, backlog)


def free_port() -> int:
    """Returns a port for a server that a test will start."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with contextlib.suppress(OSError), _listen(port):
            return port
    raise OSError(f"100 ports of {PORTS} were tried, and none is free")


def _listen(port: int, backlog: int | None = None) -> socket.socket:
    family = socket.AF_INET6 if ":" in HOST else socket.AF_INET
    return socket.create_server((HOST, port), family=family, backlog=backlog)
