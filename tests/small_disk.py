"""A small disk of a test's own, in memory, which can be full or read-only."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE = 256 * 1024  # bytes


@contextlib.contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[Path]:
    """Mounts a disk of SIZE bytes at the new directory `folder`, with options of mount(8), and yields the directory.

    Skips the test if this process may not mount.
    """
    if sys.platform != "linux":
        pytest.skip("tmpfs is Linux's")
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={SIZE}", "mode=700", *options]), "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Writes a file until the disk is full. Returns it: without it there is room again."""
    file = disk / "filling"
    with file.open("wb", buffering=0) as filling, contextlib.suppress(OSError):
        while filling.write(bytes(4096)):
            pass
    return file
