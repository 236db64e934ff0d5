"""Whose CPU time it was: of this process and what runs beneath it, or of others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.serving import processes
from loadtest.serving.processes import Usage, adopt_orphans, beneath, foreign_share, usage
from services.errors import Fatal

BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_a_system_without_proc_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    with pytest.raises(Fatal, match="^servers are started and watched by means of /proc, which only Linux has$"):
        adopt_orphans()


def test_foreign_is_what_is_not_ours() -> None:
    before, after = Usage(100.0, 1000.0, 50.0), Usage(110.0, 1016.0, 65.0)
    assert foreign_share(before, after, cores=2) == pytest.approx(1 / 20)


def test_rounding_never_makes_it_negative() -> None:
    assert foreign_share(Usage(0.0, 0.0, 0.0), Usage(1.0, 0.5, 0.52), cores=2) == 0.0


def test_a_child_is_ours_while_it_lives_and_afterwards() -> None:
    before = usage()
    with subprocess.Popen([sys.executable, "-c", BURN + "\ninput()"], stdin=subprocess.PIPE) as child:
        assert child.pid in beneath(os.getpid())
        while usage().ours - before.ours < 0.4:
            assert child.poll() is None
        child.communicate(b"\n", timeout=60)
    after = usage()
    assert child.pid not in beneath(os.getpid())
    assert after.ours - before.ours >= 0.45
    assert after.machine - before.machine >= 0.4
