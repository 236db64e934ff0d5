"""Children that end, hang or are stopped: when they are restarted, and what the log says."""

import errno
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from services.process import child_processes, progress_watch
from services.process.child import Child
from services.process.child_processes import ChildProcesses
from services.process.spare import Spare
from tests.e2e.harness import alive, wait_for
from tests.process.child import MODULE
from tests.process.supervised import pids_in, start, supervise, wait_for_pids


def backoffs(caplog: pytest.LogCaptureFixture) -> list[str]:
    return re.findall(r"the child was killed by SIGKILL; it is restarted in (.*) s", caplog.text)


def test_a_child_that_cannot_be_restarted_for_a_while_costs_the_server_nothing(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of processes or memory may be reached for a moment."""
    monkeypatch.setattr(child_processes, "MAX_BACKOFF_SECONDS", 0.1)
    name = start(children, "run", file)
    start(children, "run", file, kind="other")
    argv = children.children[name].argv
    before = wait_for_pids(file, 2)

    def kill_and_mend() -> None:
        children.children[name].argv = ["/no/such/program"]
        children.children[name].process.kill()
        wait_for(lambda: caplog.text.count("the child cannot be started: [Errno 2]") >= 2, "two attempts")
        children.children[name].argv = argv
        wait_for_pids(file, 3)

    supervise(children, kill_and_mend)
    assert pids_in(file)[:2] == before and "trying again in 0 s" in caplog.text


def test_a_child_whose_end_cannot_be_watched_is_killed_and_started_again(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_processes, "MAX_BACKOFF_SECONDS", 0.1)
    name = start(children, "run", file)
    (first,) = wait_for_pids(file, 1)
    started: list[int] = []
    spawn, pidfd_open = children.children[name].spawn, os.pidfd_open

    def spawn_and_note() -> None:
        spawn()
        started.append(children.children[name].process.pid)

    def refuse_two(pid: int) -> int:
        if pid in started[:2]:
            raise OSError(errno.EMFILE, "Too many open files")
        return pidfd_open(pid)

    monkeypatch.setattr(children.children[name], "spawn", spawn_and_note)
    monkeypatch.setattr(os, "pidfd_open", refuse_two)

    def kill() -> None:
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(started) == 3 and started[2] in pids_in(file), "the third new process runs")

    supervise(children, kill)
    assert caplog.text.count("the child cannot be watched: [Errno 24] Too many open files; trying again in 0 s") == 2
    assert [alive(pid) for pid in started] == [False, False, True]


def test_a_spare_that_cannot_be_started_for_a_while_costs_the_server_nothing(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_processes, "MAX_BACKOFF_SECONDS", 0.1)
    monkeypatch.setattr(child_processes, "SPARE_DELAY_SECONDS", 0.0)
    start(children, "run", file)
    before = wait_for_pids(file, 1)
    spare = children.spares["role"] = Spare(
        Child("spare role", [sys.executable, "-m", MODULE, "spare"], dict(os.environ), [])
    )
    failures, socketpair = [OSError(errno.EMFILE, "Too many open files")] * 2, socket.socketpair

    def refuse_two() -> tuple[socket.socket, socket.socket]:
        if failures:
            raise failures.pop()
        return socketpair()

    monkeypatch.setattr(socket, "socketpair", refuse_two)
    supervise(children, lambda: wait_for(lambda: spare.is_loaded, "the spare is loaded"))
    assert caplog.text.count("the spare role cannot be started: [Errno 24] Too many open files; trying") == 2
    assert pids_in(file) == before and alive(before[0])


def test_a_child_that_the_launcher_has_killed_is_no_victim_of_the_kernel(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next worker's KV cache would be smaller: the kernel may have killed another process meanwhile."""
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(children, "explain", lambda name, code: asked.append((name, code)) or "")
    start(children, "beat-once", file)
    supervise(children, lambda: wait_for_pids(file, 2) and os.kill(pids_in(file)[1], signal.SIGKILL))
    assert asked[0] == ("child", 0) and "the child has made no progress for" in caplog.text


def test_the_first_restart_is_immediate_and_the_backoff_doubles_up_to_its_limit(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_processes, "FIRST_BACKOFF_SECONDS", 0.1)
    monkeypatch.setattr(child_processes, "MAX_BACKOFF_SECONDS", 0.3)
    start(children, "run", file)

    def kill_five_times() -> None:
        for count in range(1, 6):
            os.kill(wait_for_pids(file, count)[-1], signal.SIGKILL)
        wait_for_pids(file, 6)

    supervise(children, kill_five_times)
    assert backoffs(caplog) == ["0.0", "0.1", "0.2", "0.3", "0.3"]
    assert len(set(pids_in(file))) == 6


def test_a_child_that_work_has_reached_is_restarted_at_once(
    children: ChildProcesses, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(children, "work", file)

    def kill_three_times() -> None:
        for count in range(1, 4):
            os.kill(wait_for_pids(file, count)[-1], signal.SIGKILL)
        wait_for_pids(file, 4)

    supervise(children, kill_three_times)
    assert backoffs(caplog) == ["0.0", "0.0", "0.0"]


@pytest.mark.parametrize("mode", ["run", "beat"])
def test_a_stopped_child_is_killed_within_three_seconds_and_restarted(
    children: ChildProcesses, file: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Also one that has not begun to beat."""
    start(children, mode, file)
    seconds: list[float] = []

    def stop_it() -> None:
        pid, moment = wait_for_pids(file, 1)[0], time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: not alive(pid), "it is killed")
        seconds.append(time.monotonic() - moment)
        wait_for_pids(file, 2)

    supervise(children, stop_it)
    (line,) = caplog.messages
    assert re.fullmatch(
        r"the child has been stopped by a signal for \d\.\d s and was killed; it is restarted in 0\.0 s", line
    )
    assert 2.0 < seconds[0] < 3.5, "three seconds, and what a busy machine adds"


def test_a_child_that_stops_to_beat_is_killed_and_restarted(
    children: ChildProcesses, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(children, "beat", kind="good")
    start(children, "beat-once", file)
    supervise(children, lambda: wait_for_pids(file, 2) and None)
    (line,) = caplog.messages
    assert re.fullmatch(r"the child has made no progress for \d\.\d s and was killed; it is restarted in 0\.0 s", line)


def test_a_child_that_continues_in_time_is_not_killed(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_watch, "COUNTED_SECONDS", 6.0)  # time for a slow machine to continue it
    name = start(children, "beat", file)
    child = children.children[name]

    def stop_and_continue() -> None:
        (pid,) = wait_for_pids(file, 1)
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: child.watch.stopped_seconds > 2, "seen stopped")  # the three add up to more than the limit
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: not child.watch.stopped_seconds, "seen running")

    supervise(children, stop_and_continue)
    assert child.process.poll() is None
