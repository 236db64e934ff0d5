"""A memory cgroup of a test's own, in which the kernel's out-of-memory killer is real."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.machine.available import own_group
from services.machine.oom_kills import own_group_of_version_1

MOUNT = Path("/sys/fs/cgroup")
VERSION_1 = MOUNT / "memory"
PATIENCE = 10.0


class MemoryGroup:
    def __init__(self, folder: Path, limit: str, used: str) -> None:
        self.folder = folder
        self._limit, self._used = folder / limit, folder / used

    def used(self) -> int:
        return int(self._used.read_text())

    def limit(self, most: int) -> None:
        self._limit.write_text(str(most))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Processes that are started in the block belong to the group, and stay in it.

        This process belongs to it as well until the end of the block: set a limit afterwards.
        """
        _move(self.folder)
        try:
            yield
        finally:
            _move(self.folder.parent)


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Yields a new group below that of this process. Skips the test if this process may not make one."""
    version_1 = VERSION_1.is_dir()
    parent = VERSION_1 / own_group_of_version_1() if version_1 else MOUNT / own_group()
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else ("memory.max", "memory.current")
    group = MemoryGroup(parent / f"tandem-test-{os.getpid()}", *names)
    try:
        group.folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made in {parent}: {error.strerror}")
    try:
        if not (group.folder / names[0]).exists():
            pytest.skip(f"{parent} gives its groups no memory controller")
        yield group
    finally:
        group.folder.rmdir()


def _move(folder: Path) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()))
