"""When a child counts as dead: by the launcher's own time, and by what the child says of itself. Time is simulated."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from services.process.progress_page import LIMIT_SECONDS, Progress, ProgressPage
from services.process.progress_watch import COUNTED_SECONDS, LOOK_SECONDS, ProgressWatch


class Watched:
    """A watch, and the page of its child."""

    def __init__(self) -> None:
        self.page = ProgressPage()
        self.child = Progress(self.page.fd)
        self.watch = ProgressWatch(self.page)

    def found_after(self, *, seconds: float = 60.0, is_stopped: bool = False) -> float | None:
        """Looks at a child that does nothing. Returns the seconds after which it counts as dead; None: it does not."""
        elapsed = 0.0
        while elapsed < seconds:
            elapsed += LOOK_SECONDS
            if self.watch.look(LOOK_SECONDS, is_stopped=is_stopped):
                return elapsed
        return None


@pytest.fixture
def watched() -> Iterator[Watched]:
    yield Watched()


def test_a_child_that_has_not_begun_to_beat_may_take_any_time(watched: Watched) -> None:
    assert watched.found_after() is None


def test_a_child_that_stops_to_beat_is_dead_within_the_limit(watched: Watched) -> None:
    watched.watch.look(LOOK_SECONDS, is_stopped=False)
    watched.child.event_loop.beat()
    found = watched.found_after()
    assert found is not None and LIMIT_SECONDS - 2 * LOOK_SECONDS <= found <= LIMIT_SECONDS
    assert watched.watch.look(LOOK_SECONDS, is_stopped=False).startswith("has made no progress for ")


def test_a_stopped_child_is_dead_within_the_limit_also_in_a_step(watched: Watched) -> None:
    watched.child.busy_for(60)
    found = watched.found_after(is_stopped=True)
    assert found is not None and LIMIT_SECONDS - 2 * LOOK_SECONDS <= found <= LIMIT_SECONDS
    assert watched.watch.look(LOOK_SECONDS, is_stopped=True).startswith("has been stopped by a signal for ")


def test_both_loops_are_watched(watched: Watched) -> None:
    watched.child.thread.beat()
    for _ in range(100):
        watched.child.event_loop.beat()
        if watched.watch.look(LOOK_SECONDS, is_stopped=False):
            return
    pytest.fail("the thread has stopped to beat")


def test_two_slow_loops_are_not_one_dead_one(watched: Watched) -> None:
    """Each look finds one of them without a new beat."""
    for _ in range(50):
        for loop in (watched.child.event_loop, watched.child.thread):
            loop.beat()
            assert not watched.watch.look(LOOK_SECONDS, is_stopped=False)


def test_a_step_may_take_until_it_said(watched: Watched) -> None:
    watched.child.thread.beat()
    watched.child.busy_for(60)
    assert watched.found_after() is None
    watched.child.busy_for(0)
    assert watched.found_after() is not None


def test_a_loop_that_pauses_is_not_expected_to_beat(watched: Watched) -> None:
    watched.child.thread.beat()
    watched.watch.look(LOOK_SECONDS, is_stopped=False)
    watched.child.thread.pause()
    assert watched.found_after() is None


def test_time_in_which_the_launcher_did_not_run_does_not_count(watched: Watched) -> None:
    """Ten seconds for the launcher and all children: they may continue in any order."""
    watched.child.thread.beat()
    watched.watch.look(LOOK_SECONDS, is_stopped=False)
    assert not watched.watch.look(10.0, is_stopped=True)
    assert not watched.watch.look(10.0, is_stopped=True)
    assert not watched.watch.look(10.0, is_stopped=False)
    watched.child.thread.beat()
    assert not watched.watch.look(LOOK_SECONDS, is_stopped=False)


def test_a_new_child_starts_from_nothing(watched: Watched) -> None:
    watched.child.thread.beat()
    assert watched.found_after() is not None
    watched.page.clear()
    watched.watch.reset()
    assert not watched.watch.look(LOOK_SECONDS, is_stopped=False)
    assert watched.found_after() is None


HUNG = """import os, sys, time
from services.process.progress_page import Progress
from services.process.progress_watch import end_if_hung
progress = Progress()
progress.thread.beat()
end_if_hung(progress)
began = time.monotonic()
while time.monotonic() - began < float(sys.argv[1]):
    time.sleep(0.1)
    progress.thread.beat()
time.sleep(60)
"""


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2>&1 | sleep 60"])
def test_a_hung_process_ends_though_nothing_takes_its_last_line(stderr: str) -> None:
    fill = "import fcntl\nfcntl.fcntl(2, 1031, 4096)\nos.write(2, bytes(4096))\n" if "|" in stderr else ""
    begin = HUNG.replace("progress =", f"{fill}progress =")
    command = f'"{sys.executable}" -c "$0" 0 {stderr.partition("|")[0]}'
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer) as pipe:
        out = pipe if "|" in stderr else None
        ended = subprocess.run(["/bin/sh", "-c", command, begin], stdout=out, timeout=30)
    assert ended.returncode == 1


def test_a_process_without_a_launcher_ends_when_it_hangs() -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", HUNG, "4"], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 1 and time.monotonic() - began > 4 + COUNTED_SECONDS
    assert re.fullmatch(r"this process has made no progress for 2\.\d s and ends\n", ended.stderr)
