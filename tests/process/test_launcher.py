"""`tandem serve`: which failures end it, and that a signal ends it before there are children."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.addresses import at, open_server
from tests.e2e.harness import TANDEM, children_of, run_tandem


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
