"""Child processes: what they inherit, how an exit is reported, and that all of them end."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from services.errors import Fatal
from services.process import child_processes
from services.process.child_processes import ChildFailed, ChildProcesses
from tests.e2e.harness import PLAIN_HTTP, alive, wait_for
from tests.process.child import MODULE
from tests.process.supervised import pids_in, start, supervise, wait_for_pids


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
