"""`tandem serve`: when it is ready, which failures end it, and that a signal ends it before there are children."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.machine.listen import listen
from services.process.child_processes import ChildProcesses
from services.process.launcher import _start_roles, is_ready
from services.security.secret import cache_root_key
from tests.addresses import at, open_server
from tests.e2e.harness import TANDEM, children_of, run_tandem


class Health(http.server.BaseHTTPRequestHandler):
    """Answers /health with the status of its server."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


@contextlib.contextmanager
def shim(status: int) -> Iterator[http.server.HTTPServer]:
    handler = type("Handler", (Health,), {"status": status})
    with listen(None, 0) as front, http.server.HTTPServer(front.getsockname()[:2], handler, False) as server:
        server.socket.close()
        server.socket = front
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, False)])
def test_all_are_ready_when_the_shim_says_so(status: int, ready: bool) -> None:
    with shim(status) as server:
        assert is_ready(server.socket) is ready


def test_a_shim_that_does_not_accept_or_answers_something_else_is_not_ready() -> None:
    with listen(None, 0) as front:
        assert not is_ready(front), "nothing accepts"
        front.setblocking(True)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = front.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(b"\x00\xff\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert not is_ready(front), "no HTTP"


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
        with Started() as started, listen(None, 0) as front:
            _start_roles(started, {"model": "demo"}, tmp_path, 1, front)
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
