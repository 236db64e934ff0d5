"""Tells errors of a disk, which may end by themselves, from errors of a path; tries to write in a directory."""

import errno
import tempfile
from pathlib import Path

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
PROBE_BYTES = 4096


def is_disk_error(error: OSError) -> bool:
    """Returns whether the disk is full, over the quota, read-only or broken."""
    return error.errno in DISK_ERRORS


def check_writable(folder: Path) -> None:
    """Writes a file in `folder` and removes it. Raises OSError: a full disk may still make an empty file."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(PROBE_BYTES))
