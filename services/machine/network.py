"""This machine's own address, for what must be reached from nowhere else."""

import socket
import sys
from functools import cache

MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103  # bytes, of a Unix socket
LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@cache
def loopback() -> str:
    """127.0.0.1; ::1 where the loopback device has no IPv4 address."""
    for family, address in LOOPBACKS:
        try:
            with socket.socket(family) as found:
                found.bind((address, 0))
                return address
        except OSError:
            continue
    return LOOPBACKS[0][1]  # none can be had: the error of its first use says so


def authority(host: str, port: int) -> str:
    """host:port as a URL has it (RFC 3986, section 3.2.2): an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
