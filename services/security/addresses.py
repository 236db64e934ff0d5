"""Checks the addresses of internal edges: a Unix socket in a directory of mode 0700, or TCP with a secret.

A loopback address is TCP: other users of the machine and other containers of the pod can connect to it.
"""

import os
import stat
from pathlib import Path

from services.errors import Fatal
from services.security.secret import ClusterSecret

GRPC, ZEROMQ = "unix:", "ipc://"  # how gRPC and ZeroMQ write the path of a Unix socket
UNNAMED = ("unix-abstract:", "unix:@", "ipc://@", "ipc://*")  # not in a directory, so without permissions


def check_address(address: str, secret: ClusterSecret | None, unix: str = GRPC) -> ClusterSecret | None:
    """Returns the secret to use at `address`: `secret` for TCP, None for a Unix socket.

    Raises Fatal for TCP without a secret, and for a Unix socket with another prefix than `unix`, with % in its path, or
    not in a directory that belongs to this user and that no other user can enter.
    """
    if address.startswith(UNNAMED):
        raise Fatal(f"{address}: every user of this machine can connect to a socket that is not in a directory")
    if address.startswith((GRPC, ZEROMQ)):
        if not address.startswith(unix):
            raise Fatal(f"{address}: write the path of a Unix socket as {unix}PATH here")
        path = address.removeprefix("ipc:").removeprefix("unix:").removeprefix("//")
        if "%" in path:
            raise Fatal(f"{address}: the path contains %, which gRPC decodes: use a path without %")
        _check_folder(address, Path(path).parent)
        return None
    if secret is None:
        raise Fatal(
            f"{address}: TCP between processes needs a shared secret (--cluster-secret-file); without one, use a Unix"
            " socket in a directory of this user with mode 0700"
        )
    return secret


def _check_folder(address: str, folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError as error:
        raise Fatal(f"{address}: the directory {folder} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise Fatal(f"{address}: {folder} is not a directory")
    if found.st_uid != os.geteuid():
        raise Fatal(f"{address}: the directory {folder} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        raise Fatal(f"{address}: other users can enter {folder} (mode {mode | 0o700:04o}): it must have mode 0700")
