"""A container's limits of memory and cores count where they are lower than the machine's."""

import os
from pathlib import Path

import pytest

from services.worker import control_groups
from services.worker.control_groups import available_bytes, available_cores

GB = 10**9
OWN = Path("outer/inner")


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "own_group", lambda: OWN)
    monkeypatch.setattr(control_groups, "MOUNT", tmp_path)
    for folder in (tmp_path / "outer", tmp_path / OWN):
        folder.mkdir()
    return tmp_path


def limit(folder: Path, most: str, used: int, cached: int) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {cached}\ninactive_file 0\n")


def test_memory_is_counted_without_the_page_cache(mount: Path) -> None:
    """The checkpoint that was just read lies in it."""
    of_the_machine = available_bytes()
    assert of_the_machine > 0
    limit(mount / OWN, "max", 10**6, 0)
    assert abs(available_bytes() - of_the_machine) < GB
    limit(mount / OWN, str(10**7), 9 * 10**6, 4 * 10**6)
    assert available_bytes() == 5 * 10**6
    limit(mount / "outer", str(10**6), 10**6, 1000)
    assert available_bytes() == 1000, "a limit further up holds as well"


def test_cores_are_whole_and_at_least_one(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert available_cores() == 8
    for text, cores in (("max 100000", 8), ("350000 100000", 3), ("1600000 100000", 8), ("50000 100000", 1)):
        (mount / OWN / "cpu.max").write_text(f"{text}\n")
        assert available_cores() == cores
    (mount / OWN / "cpu.max").write_text("400000 100000\n")
    (mount / "outer" / "cpu.max").write_text("200000 100000\n")
    assert available_cores() == 2, "a quota further up holds as well"
