"""The directories /proc and /sys, in which Linux describes machine and processes. Other systems have neither."""

import os
import tempfile
from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")
SHARED_MEMORY = Path("/dev/shm")  # a directory in memory, writable also where the disk is not


def read(file: Path) -> str:
    """Returns the text of a file; empty if it does not exist or cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def unnamed_file(name: str) -> int:
    """Returns the descriptor of a new empty file that ends with its last descriptor: in memory, else on the disk.

    `name` is what tools show. Raises OSError if the system refuses it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
