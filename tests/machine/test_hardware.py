"""CPU name, CPU time and cache size of the machine, with /proc and /sys and without them."""

import math
import platform
import time
from pathlib import Path

import pytest

from services.machine import busy_seconds, cpu_model, files, hardware, last_cache_bytes


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulates a system without those files."""
    monkeypatch.setattr(files, "PROC", tmp_path)
    monkeypatch.setattr(files, "SYS", tmp_path)


def test_the_cpu_has_a_name_of_one_line() -> None:
    assert cpu_model() == cpu_model().strip() != "" and "\n" not in cpu_model()


def test_the_cpu_time_of_this_process_counts() -> None:
    before, own = busy_seconds(), time.process_time()
    while time.process_time() - own < 0.2:
        pass
    assert busy_seconds() - before >= 0.15


def test_the_largest_cache_of_the_first_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "SYS", tmp_path)
    for index, size in enumerate(("32K", "1024K", "512K")):
        folder = tmp_path / f"devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert last_cache_bytes() == 1024**2


@pytest.mark.usefixtures("untold")
def test_the_defaults_of_a_system_without_these_files() -> None:
    assert cpu_model() == platform.machine()
    assert math.isnan(busy_seconds())
    assert last_cache_bytes() == hardware.DEFAULT_LAST_CACHE_BYTES
