"""The CPU time of this process and its descendants, and that of other processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.serving import processes
from loadtest.serving.processes import Usage, adopt_orphans, descendants, foreign_share, usage
from services.errors import Fatal

BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_a_system_without_proc_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    with pytest.raises(Fatal, match="^servers are started and watched through /proc, which only Linux has$"):
        adopt_orphans()


def test_foreign_cpu_time_is_that_of_other_processes() -> None:
    before, after = Usage(100.0, 1000.0, 50.0), Usage(110.0, 1016.0, 65.0)
    assert foreign_share(before, after, cores=2) == pytest.approx(1 / 20)


def test_the_foreign_share_is_never_negative() -> None:
    assert foreign_share(Usage(0.0, 0.0, 0.0), Usage(1.0, 0.5, 0.52), cores=2) == 0.0


def test_a_child_counts_as_own_while_it_runs_and_after_it_ended() -> None:
    before = usage()
    with subprocess.Popen([sys.executable, "-c", BURN + "\ninput()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        while usage().own - before.own < 0.4:
            assert child.poll() is None
        child.communicate(b"\n", timeout=60)
    after = usage()
    assert child.pid not in descendants(os.getpid())
    assert after.own - before.own >= 0.45
    assert after.machine - before.machine >= 0.4
