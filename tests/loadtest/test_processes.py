"""Whose CPU time it was: of this process and what runs beneath it, or of others."""

import os
import subprocess
import sys

import pytest

from loadtest.processes import Usage, beneath, foreign_share, usage

BURN = "import time\nwhile time.process_time() < 0.5: pass"


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
