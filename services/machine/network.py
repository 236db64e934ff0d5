"""The loopback address of this machine, and the text form of addresses."""

import ipaddress
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


def is_all_interfaces(host: str) -> bool:
    """Returns whether the numeric address `host` stands for all interfaces: 0.0.0.0 or ::, in any form."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_unspecified


def authority(host: str, port: int) -> str:
    """Returns host:port as in a URL (RFC 3986, section 3.2.2), with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
