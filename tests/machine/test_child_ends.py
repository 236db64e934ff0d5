"""Both ChildEnds (pidfds, polling) report each child's end once, and soon, and leave the exit status to its Popen."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.machine.child_ends import ChildEnds, PidfdEnds, PolledEnds, watch_ends
from tests.e2e.harness import wait_for

Start = Callable[[], "subprocess.Popen[bytes]"]
LATE_SECONDS = 1.0  # polling is up to 0.05 s late, and this machine may be busy


@pytest.fixture(params=[PidfdEnds, PolledEnds])
def ends(request: pytest.FixtureRequest) -> Iterator[ChildEnds]:
    made: ChildEnds = request.param()
    with contextlib.closing(made):
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start() -> "subprocess.Popen[bytes]":
            child = stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            stack.callback(child.kill)
            return child

        yield start


def collect(ends: ChildEnds, count: int) -> list[str]:
    """Returns the reported names, once there are `count`."""
    found: list[str] = []
    wait_for(lambda: found.extend(ends.wait(0.1)) or len(found) >= count, f"{count} ends")
    return found


def test_a_wait_without_an_end_stops_in_time(ends: ChildEnds, start: Start) -> None:
    ends.add("child", start())
    began = time.monotonic()
    assert ends.wait(0.2) == []
    assert 0.15 < time.monotonic() - began < 0.2 + LATE_SECONDS
    assert ends.wait(-1.0) == []


def test_an_end_is_reported_soon_and_once(ends: ChildEnds, start: Start) -> None:
    child = start()
    ends.add("child", child)
    child.kill()
    began = time.monotonic()
    assert ends.wait(20.0) == ["child"]
    assert time.monotonic() - began < LATE_SECONDS
    assert child.wait() == -signal.SIGKILL, "its status is there to be read"
    assert ends.wait(0.1) == []


def test_a_child_that_ended_before_it_was_added_is_reported(ends: ChildEnds, start: Start) -> None:
    child = start()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    ends.add("child", child)
    assert ends.wait(20.0) == ["child"]


def test_a_burst_loses_none_and_leaves_no_zombie(ends: ChildEnds, start: Start) -> None:
    """Some end while others are reported, and a name is reused at once, as the launcher does."""
    children = {f"child-{index}": start() for index in range(12)}
    for name, child in children.items():
        ends.add(name, child)
    for child in list(children.values())[:8]:
        child.kill()
    (first, *_) = told = ends.wait(20.0)
    children[first].wait()
    again = start()
    ends.add(first, again)
    for child in [*list(children.values())[8:], again]:
        child.kill()
    told += collect(ends, 13 - len(told))
    assert sorted(told) == sorted([*children, first])
    assert [child.wait() for child in [*children.values(), again]] == [-signal.SIGKILL] * 13
    with pytest.raises(ChildProcessError):
        os.waitpid(children[first].pid, os.WNOHANG)


def test_closing_closes_every_file_descriptor(start: Start) -> None:
    def open_files() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    children = [start() for _ in range(3)]
    before = open_files()
    ends = PidfdEnds()
    for index, child in enumerate(children):
        ends.add(str(index), child)
    assert open_files() >= before + 3
    ends.close()
    assert open_files() == before


def test_polling_where_there_are_no_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(watch_ends()) as ends:
        assert isinstance(ends, PidfdEnds)

    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert isinstance(watch_ends(), PolledEnds), "an old kernel, or a sandbox"
    monkeypatch.delattr(os, "pidfd_open")
    assert isinstance(watch_ends(), PolledEnds)


def test_a_child_that_cannot_be_watched_leaves_no_file_open(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, child = PidfdEnds(), start()

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(ends._selector, "register", refuse)
    before = {*Path("/proc/self/fd").iterdir()}
    with pytest.raises(OSError, match="Cannot allocate memory"):
        ends.add("child", child)
    assert {*Path("/proc/self/fd").iterdir()} == before
    ends.close()
