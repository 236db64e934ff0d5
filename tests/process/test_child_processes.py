"""Child processes: what they inherit, how an exit is reported, when they are restarted, and that all of them end."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from services.errors import Fatal
from services.process import child_processes, progress_watch
from services.process.child_processes import ChildFailed, ChildProcesses
from tests.e2e.harness import PLAIN_HTTP, alive, wait_for
from tests.process.child import MODULE


@pytest.fixture
def children() -> Iterator[ChildProcesses]:
    with ChildProcesses() as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Each child appends its pid to it."""
    (tmp_path / "pids").touch()
    return tmp_path / "pids"


def start(children: ChildProcesses, mode: str, argument: object = "", kind: str = "child") -> str:
    return children.start_module(kind, [MODULE, mode, *([str(argument)] if argument != "" else [])], {}, [])


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()]


def wait_for_pids(file: Path, count: int) -> list[int]:
    pids: list[int] = wait_for(lambda: len(found := pids_in(file)) >= count and found, f"{count} children")
    return pids


def supervise(children: ChildProcesses, act: Callable[[], None]) -> None:
    """Supervises in this thread until `act`, in another one, has returned. Raises what `act` raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)
        children.stop()

    thread = threading.Thread(target=run)
    try:
        thread.start()
        assert children.supervise(lambda: True)
    finally:
        thread.join()
    if failures:
        raise failures[0]


def backoffs(caplog: pytest.LogCaptureFixture) -> list[str]:
    return re.findall(r"the child was killed by SIGKILL; it is restarted in (.*) s", caplog.text)


def test_children_of_one_kind_are_numbered(children: ChildProcesses) -> None:
    names = [start(children, "run", kind=kind) for kind in ("worker", "tokenizer", "tokenizer", "tokenizer")]
    assert names == list(children.children) == ["worker", "tokenizer", "tokenizer-1", "tokenizer-2"]


def test_a_child_gets_variables_and_file_descriptors_and_a_session_of_its_own(children: ChildProcesses) -> None:
    reader, writer = os.pipe()
    children.start_module("child", [MODULE, "write", str(writer)], {"CHILD_VALUE": "abc"}, [writer])
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"abc"
    name = start(children, "run", kind="other")
    pid = children.children[name].process.pid
    assert os.getsid(pid) == pid


def test_a_child_that_starts_is_not_ended_by_a_hang_up(children: ChildProcesses, file: Path) -> None:
    name = start(children, "run", file)
    children.hang_up(name)
    wait_for(lambda: pids_in(file), "the child runs")
    children.hang_up(name)
    assert children.children[name].process.poll() is None
    children.children[name].process.kill()
    children.children[name].process.wait()
    children.hang_up(name)  # of a child that has ended: nothing


def test_a_child_gets_no_secret_of_another_role(children: ChildProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "a key")
    monkeypatch.setenv("CHILD_VALUE", "of the parent")
    reader, writer = os.pipe()
    children.start_module("child", [MODULE, "write-all", str(writer)], {}, [writer])
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    assert b"CHILD_VALUE=of the parent" in found and b"TANDEM_API_KEY" not in found


def test_a_module_that_cannot_be_started_is_named(children: ChildProcesses) -> None:
    with pytest.raises(Fatal, match="^the child cannot be started: "):
        start(children, "\0")


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


def test_a_child_that_the_launcher_has_killed_is_no_victim_of_the_kernel(
    children: ChildProcesses, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next worker's KV cache would be smaller: the kernel may have killed another process meanwhile."""
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(children, "explain", lambda name, code: asked.append((name, code)) or "")
    start(children, "beat-once", file)
    supervise(children, lambda: wait_for_pids(file, 2) and os.kill(pids_in(file)[1], signal.SIGKILL))
    assert asked[0] == ("child", 0) and "the child has made no progress for" in caplog.text


@pytest.mark.parametrize(("status", "kind"), [(3, ChildFailed), (0, Fatal)], ids=["an error status", "status 0"])
def test_an_exit_before_all_are_ready_is_raised(children: ChildProcesses, status: int, kind: type[Exception]) -> None:
    start(children, "run", kind="other")
    start(children, "exit", status)
    with pytest.raises(kind, match=f"^the child exited with status {status} before the server was ready; all"):
        children.supervise(lambda: False)


def test_a_killed_child_is_reported_before_one_that_failed(children: ChildProcesses) -> None:
    """The other one may have failed because of it."""
    start(children, "exit", 3, kind="first")
    name = start(children, "run", kind="second")
    children.children[name].process.kill()
    for child in children.children.values():
        child.process.wait(20)
    with pytest.raises(Fatal, match="^the second was killed by SIGKILL before"):
        children.raise_if_ended()


def test_nothing_is_raised_while_all_run(children: ChildProcesses, file: Path) -> None:
    start(children, "run", file)
    wait_for_pids(file, 1)
    children.raise_if_ended()


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


def test_a_child_through_which_a_token_passed_is_restarted_at_once(
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


def test_a_stop_before_all_are_ready(children: ChildProcesses) -> None:
    start(children, "run")
    children.stop()
    assert not children.supervise(lambda: False)


def test_a_child_that_is_stopped_before_all_are_ready_ends_the_start(children: ChildProcesses, file: Path) -> None:
    start(children, "run", file)

    def stop_it() -> None:
        os.kill(wait_for_pids(file, 1)[0], signal.SIGSTOP)

    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(stop_it)
        with pytest.raises(Fatal, match=r"the child has been stopped by a signal for .* and was killed before the"):
            children.supervise(lambda: False)
        stopping.result()


def test_no_work_begins_before_all_are_ready_beside_other_work_or_after_a_stop(children: ChildProcesses) -> None:
    assert not children.in_background(iter([None])), "they start"
    go_on = threading.Event()

    def begin() -> None:
        wait_for(lambda: children.in_background(iter(lambda: None, go_on.is_set)), "all are ready")
        assert not children.in_background(iter([None])), "other work runs"
        children.stop()

    supervise(children, begin)
    assert not children.in_background(iter([None]))


def test_a_child_that_is_stopped_while_it_drains_is_told(
    children: ChildProcesses, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(children, "ignore-sigterm", file)
    (pid,) = wait_for_pids(file, 1)
    supervise(children, lambda: None)
    os.kill(pid, signal.SIGSTOP)
    children.drain("child", time.monotonic() + 60)
    assert re.search(r"the child has been stopped by a signal for \d\.\d s and is killed", caplog.text)


def test_children_that_drain_while_the_others_are_supervised(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exit of one that drains is no fault; one that has not exited at the deadline still runs."""
    caplog.set_level(logging.INFO)
    with ChildProcesses() as children:
        front, other = start(children, "run", kind="front"), start(children, "run", file, kind="other")
        (pid,) = wait_for_pids(file, 1)
        start(children, "ignore-sigterm", file, kind="slow")
        wait_for_pids(file, 2)
        supervise(children, lambda: None)
        began = time.monotonic()
        children.drain("front", began + 60)
        assert children.children[front].process.poll() == -signal.SIGTERM and time.monotonic() - began < 30
        os.kill(pid, signal.SIGKILL)
        children.drain("slow", time.monotonic() + 1)
        assert children.children["slow"].process.poll() is None
        wait_for_pids(file, 3)
        assert children.children[other].process.poll() is None
        children.kill_all()
    assert "the front" not in caplog.text and "the other was killed by SIGKILL; it is restarted" in caplog.text


def test_all_children_are_killed_at_once_while_they_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a second SIGTERM does it: the handler runs in the thread that waits for the children."""
    monkeypatch.setattr(child_processes, "STOP_SECONDS", 60.0)
    with ChildProcesses() as children:
        start(children, "ignore-sigterm", file)
        wait_for_pids(file, 1)
        before = signal.signal(signal.SIGALRM, lambda *_: children.kill_all())
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, before)
    assert children.children["child"].process.returncode == -signal.SIGKILL


def test_the_end_of_the_context_ends_all_children_and_kills_those_that_ignore_sigterm(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_processes, "STOP_SECONDS", 0.5)
    with ChildProcesses() as children:
        start(children, "run", file, kind="good")
        start(children, "ignore-sigterm", file, kind="bad")
        wait_for_pids(file, 2)
    ended = {name: child.process.returncode for name, child in children.children.items()}
    assert ended == {"good": -signal.SIGTERM, "bad": -signal.SIGKILL}
    (warning,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith("the bad did not exit within ") and warning.endswith("of SIGTERM; it is killed")


def test_children_exit_when_their_parent_is_killed(file: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-m", MODULE, "parent", str(file)])
    try:
        (pid,) = wait_for_pids(file, 1)
        assert alive(pid)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not alive(pid), "end of the child")


def test_a_role_is_started_with_a_metrics_server_that_outlives_it(children: ChildProcesses, socket_dir: Path) -> None:
    arguments = (f"--listen=unix:{socket_dir}/engine.sock", f"--worker=ipc://{socket_dir}/worker.sock")
    children.start_with_metrics("engine", {"log_level": "error", "model": "not an option of the engine"}, *arguments)
    (peer,) = children.metrics_peers
    name, _, address = peer.partition("=")
    assert name == "engine"
    response = httpx.get(f"http://{address}/health", timeout=60, **PLAIN_HTTP)
    assert response.status_code == 503, "no worker is there"
    children.children["engine"].process.kill()
    children.children["engine"].process.wait()
    with pytest.raises(httpx.ReadTimeout):  # the socket still accepts: connections wait for the next process
        httpx.get(f"http://{address}/health", timeout=0.2, **PLAIN_HTTP)
