"""The loopback address of this machine, and the text form of addresses."""

import socket
import sys
from functools import cache

MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103  # bytes, of a Unix socket
LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@cache
def loopback() -> str:
    """Returns 127.0.0.1; ::1 if the loopback device has no IPv4 address."""
    for family, address in LOOPBACKS:
        try:
            with socket.socket(family) as found:
                found.bind((address, 0))
                return address
        except OSError:
            continue
    return LOOPBACKS[0][1]  # neither can be bound: the first use reports the error


def authority(host: str, port: int) -> str:
    """Returns host:port as in a URL (RFC 3986, section 3.2.2), with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
