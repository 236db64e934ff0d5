"""The loopback address of this machine, the text form of addresses, and what a socket still holds."""

import fcntl
import ipaddress
import socket
import struct
import sys
import termios
from functools import cache
from typing import Protocol

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


def is_all_interfaces(host: str) -> bool:
    """Returns whether the numeric address `host` stands for all interfaces: 0.0.0.0 or ::, in any form."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_unspecified


def authority(host: str, port: int) -> str:
    """Returns host:port as in a URL (RFC 3986, section 3.2.2), with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def unacknowledged_bytes(connection: HasFileno) -> int:
    """Returns the bytes that the system holds for the peer: SIOCOUTQ of tcp(7), unix(7). 0 if it does not say."""
    if sys.platform != "linux":
        return 0
    try:
        held = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)  # SIOCOUTQ has the same number
    except (OSError, ValueError):  # the connection is closed
        return 0
    return int(struct.unpack("i", held)[0])
