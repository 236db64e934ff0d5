"""Child processes of a launcher, and the file in which they tell their pids."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.process.child_processes import ChildProcesses


@pytest.fixture
def children() -> Iterator[ChildProcesses]:
    with ChildProcesses() as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Each child appends its pid to it."""
    (tmp_path / "pids").touch()
    return tmp_path / "pids"
