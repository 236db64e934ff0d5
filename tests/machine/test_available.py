"""Available memory and cores: cgroup limits below the machine's, and the fallbacks of other systems."""

import os
from pathlib import Path

import pytest

from services.machine import available, available_bytes, available_cores, files

GB = 10**9
OWN = Path("outer/inner")


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(available, "own_group", lambda: OWN)
    monkeypatch.setattr(files, "SYS", tmp_path)
    groups = tmp_path / "fs" / "cgroup"
    (groups / OWN).mkdir(parents=True)
    return groups


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulates a system without /proc, /sys and CPU affinity."""
    monkeypatch.setattr(files, "PROC", tmp_path)
    monkeypatch.setattr(files, "SYS", tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity")


def limit(folder: Path, most: str, used: int, cached: int) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {cached}\ninactive_file 0\n")


def test_memory_is_counted_without_the_page_cache(mount: Path) -> None:
    """A checkpoint that was just read is in the page cache."""
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


@pytest.mark.usefixtures("untold")
def test_without_affinity_and_quota_all_cores_are_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, cores in ((12, 12), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert available_cores() == cores


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"SC_AVPHYS_PAGES": 100, "SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}, 100 * 4096),
        ({"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 16384}, 500 * 16384),  # macOS
        ({"SC_AVPHYS_PAGES": -1, "SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}, 500 * 4096),
        ({}, available.DEFAULT_BYTES),
    ],
    ids=["free", "all", "refused", "nothing"],
)
def test_memory_from_sysconf(monkeypatch: pytest.MonkeyPatch, told: dict[str, int], expected: int) -> None:
    monkeypatch.setattr(os, "sysconf_names", told)
    monkeypatch.setattr(os, "sysconf", told.__getitem__)
    assert available_bytes() == expected


@pytest.mark.usefixtures("untold")
def test_sysconf_of_this_machine_reports_memory() -> None:
    assert 0 < available_bytes() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
