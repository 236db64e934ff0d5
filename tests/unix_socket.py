"""Whether a process listens on a Unix socket."""

import socket
from pathlib import Path


def connects(path: Path) -> bool:
    """Returns whether a client can connect to `path`: not if there is no file, and not before its owner listens."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True
