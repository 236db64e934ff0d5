"""`tandem serve`: which failures end it, and that a signal ends it before there are children."""

import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.machine.listen import listen
from services.options.declarations import ROLES, ServeOptions
from services.process.child_processes import ChildProcesses
from services.process.launcher import _start_roles
from services.process.readiness import Readiness
from services.security.secret import cache_root_key
from tests.addresses import at, open_server
from tests.e2e.harness import ALL_READY, TANDEM, alive, children_of, role_of, run_tandem, wait_for


class Started(ChildProcesses):
    """Keeps the command lines and environments of the roles instead of starting them."""

    def __enter__(self) -> "Started":
        super().__enter__()
        self.roles: dict[str, tuple[list[str], dict[str, str]]] = {}
        return self

    def start_module(self, kind: str, argv: list[str], variables: dict[str, str], fds: list[int]) -> str:
        self.roles[kind] = (argv, variables)
        return kind


def test_the_engine_alone_gets_a_root_key_in_its_environment(tmp_path: Path) -> None:
    """The command lines of all processes, and the environments of the others, have no trace of it."""
    keys = []
    for _ in range(2):
        with Started() as started, listen(None, 0) as front, Readiness() as readiness:
            _start_roles(started, {"model": "demo"}, tmp_path, ServeOptions(spare_processes=False), front, readiness)
        assert started.roles.keys() == {"worker", "engine", "tokenizer", "shim"}
        (key,) = {variables.pop("TANDEM_CACHE_ROOT_KEY", None) for _, variables in started.roles.values()} - {None}
        assert key not in str(started.roles) and len(bytes.fromhex(key)) == 32
        assert cache_root_key(None, key) == key.encode()
        keys.append(key)
    assert keys[0] != keys[1], "each server draws its own"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failure_is_one_line(tmp_path: Path, log_format: str) -> None:
    ended = run_tandem("serve", str(tmp_path / "none"), "--port=0", f"--log-format={log_format}")
    (line,) = ended.stderr.splitlines()
    message = f"there is no model directory {tmp_path / 'none'}"
    assert ended.returncode == 1
    if log_format == "json":
        found = json.loads(line)
        assert (found["role"], found["level"], found["message"]) == ("serve", "error", message)
    else:
        assert line == f"tandem serve: error: {message}"


def test_a_port_in_use_is_reported_before_the_model_is_looked_for(tmp_path: Path) -> None:
    with open_server() as taken:
        port = taken.getsockname()[1]
        ended = run_tandem("serve", str(tmp_path / "none"), f"--port={port}")
    assert ended.stderr == f"tandem serve: error: cannot listen on {at(port)}: Address already in use\n"


def test_a_gateway_port_in_use_is_reported_as_early(tmp_path: Path) -> None:
    with open_server() as taken:
        port = taken.getsockname()[1]
        ended = run_tandem("serve", str(tmp_path / "none"), "--port=0", f"--grpc-port={port}")
    assert ended.stderr == f"tandem serve: error: cannot listen on {at(port)}: Address already in use\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_it_downloads(tmp_path: Path, number: signal.Signals) -> None:
    """The hub accepts the connection and never answers."""
    with open_server() as hub:
        variables = {
            "HF_ENDPOINT": f"http://{at(hub.getsockname()[1])}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
        }
        hub.settimeout(60)
        process = subprocess.Popen(
            [*TANDEM, "serve", "some/model", "--port=0"], env={**os.environ, **variables, "NO_PROXY": "*"}
        )
        try:
            connection, _ = hub.accept()
            with connection:
                assert children_of(process.pid) == []
                process.send_signal(number)
                assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def in_a_terminal(folder: Path, *, nohup: bool) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A ready server in a terminal of its own. Yields its process and the other end of the terminal, which the caller
    closes."""
    own_end, end = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(end, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)  # whatever this process has

    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*TANDEM, "serve", "--port=0", "--cpu-threads=1"],
            stdin=end, stderr=log, pass_fds=[end], start_new_session=True, preexec_fn=take_terminal,
        )  # fmt: skip
    os.close(end)
    try:
        wait_for(lambda: ALL_READY in (folder / "log").read_text(), "all are ready", 60)
        yield process, own_end
    finally:
        process.terminate()
        process.wait(20)


def test_the_server_ends_with_its_terminal(tmp_path: Path) -> None:
    """It must not stay on as an orphan that holds the port and the memory."""
    with in_a_terminal(tmp_path, nohup=False) as (process, terminal):
        children = children_of(process.pid)
        assert len(children) == 4
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "SIGHUP has no effect" in (tmp_path / "log").read_text(), "an ordinary SIGHUP ends nothing")
        assert process.poll() is None
        os.close(terminal)
        assert process.wait(20) == 0
        wait_for(lambda: not any(alive(pid) for pid in children), "the children have ended")


def test_nohup_keeps_the_server(tmp_path: Path) -> None:
    with in_a_terminal(tmp_path, nohup=True) as (process, terminal):
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "SIGHUP has no effect" in (tmp_path / "log").read_text(), "the signal has arrived")
        assert process.poll() is None and {role_of(pid) for pid in children_of(process.pid)} >= set(ROLES)


def test_a_reload_that_is_asked_for_while_the_server_starts_does_not_end_it() -> None:
    process = subprocess.Popen([*TANDEM, "serve", "--port=0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        process.send_signal(signal.SIGUSR2)
        lines = [first, *itertools.takewhile(lambda line: ALL_READY not in line, process.stderr)]
        assert process.poll() is None, lines
        assert not any("a reload begins" in line for line in lines)
    finally:
        process.terminate()
        process.communicate(timeout=60)
