"""Kills by the kernel's out-of-memory killer: of the cgroup, in both versions, else of the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.machine import files, oom_kills
from tests.memory_group import memory_group

MB = 2**20
EATER = f"""
import sys
from pathlib import Path
from services.machine import oom_kills
(Path(sys.argv[1]) / "cgroup.procs").write_text("0")  # itself
print(oom_kills(), flush=True)
kept = [bytearray({MB}) for _ in range(200)]
"""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "PROC", tmp_path / "proc")
    monkeypatch.setattr(files, "SYS", tmp_path / "sys")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_most_exact_count_is_taken(system: Path) -> None:
    groups = system / "sys" / "fs" / "cgroup"
    assert oom_kills() == 0
    write(system / "proc" / "vmstat", "nr_free_pages 7\noom_kill 9\n")
    assert oom_kills() == 9, "the machine's"
    write(groups / "memory" / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills() == 3, "a container's"
    write(system / "proc" / "self" / "cgroup", "5:cpu,memory:/a/b\n0::/c\n")
    write(groups / "memory" / "a" / "b" / "memory.oom_control", "oom_kill 2\n")
    assert oom_kills() == 2
    write(groups / "c" / "memory.events", "max 8\noom 5\noom_kill 4\noom_group_kill 0\n")
    assert oom_kills() == 4


def test_a_kill_in_a_group_is_counted() -> None:
    with memory_group() as group:
        group.limit(group.used() + 100 * MB)
        eat = [sys.executable, "-c", EATER, str(group.folder)]
        for count in (0, 1):
            ended = subprocess.run(eat, stdout=subprocess.PIPE, check=False, timeout=60)
            assert (ended.returncode, ended.stdout) == (-9, f"{count}\n".encode())
