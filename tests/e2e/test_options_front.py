"""Options of the shim and the launcher: address, port, API key, directory of the sockets."""

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from services.machine import authority, loopback
from services.process.runtime_dir import runtime_dir
from tests.addresses import open_server
from tests.e2e.harness import TANDEM, Server, children_of, wait_for

FLAG_KEY, ENVIRONMENT_KEY = "key-of-the-flag", "key-of-the-environment"
HOST = "127.0.0.2" if loopback() == "127.0.0.1" else loopback()


@dataclass(frozen=True)
class Front:
    """`tandem serve` on a port of the test's choice; `Server` always uses a free one."""

    port: int
    pid: int
    runtime_dir: Path

    def get(self, path: str, key: str | None = None, host: str = HOST) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.get(f"http://{authority(host, self.port)}{path}", headers=headers, timeout=30, trust_env=False)

    def healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.get("/health").status_code == 200
        return False


def free_port() -> int:
    with open_server() as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder, port = tmp_path_factory.mktemp("front"), free_port()
    with runtime_dir(None) as short, (folder / "log").open("w") as log:
        args = [f"--host={HOST}", f"--port={port}", f"--api-key={FLAG_KEY}", f"--runtime-dir={short}/deep/run"]
        env = {**os.environ, "TANDEM_API_KEY": ENVIRONMENT_KEY}
        process = subprocess.Popen([*TANDEM, "serve", *args], stderr=log, env=env)
        try:
            found = Front(port, process.pid, short / "deep" / "run")
            wait_for(lambda: found.healthy() or process.poll() is not None, "healthy", 60)
            assert process.poll() is None, (folder / "log").read_text()
            yield found
        finally:
            process.terminate()
            process.wait(10)


@pytest.fixture(scope="module")
def keyed() -> Iterator[Server]:
    with Server(env={"TANDEM_API_KEY": ENVIRONMENT_KEY}) as server:
        yield server


def test_host(front: Front) -> None:
    assert front.get("/health").status_code == 200
    if loopback() == HOST:
        pytest.skip("IPv6 has one loopback address only")
    with pytest.raises(httpx.ConnectError):
        front.get("/health", host=loopback())


def test_port(front: Front) -> None:
    assert front.get("/version").status_code == 200


def test_runtime_dir(front: Front) -> None:
    names = {path.name for path in front.runtime_dir.iterdir()}
    assert names == {"engine.sock", "worker.sock", "tokenizer-0.sock", "lock"}
    assert stat.S_IMODE(front.runtime_dir.stat().st_mode) == 0o700


def test_api_key(front: Front) -> None:
    assert front.get("/v1/models", FLAG_KEY).status_code == 200
    for wrong in (None, FLAG_KEY + "x", FLAG_KEY[:-1], ENVIRONMENT_KEY):
        response = front.get("/v1/models", wrong)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    assert front.get("/health").status_code == 200


def test_api_key_from_the_environment(keyed: Server) -> None:
    assert keyed.get("/v1/models").status_code == 401
    assert keyed.get("/v1/models", headers={"Authorization": f"Bearer {ENVIRONMENT_KEY}"}).status_code == 200


def test_api_key_is_on_no_command_line(front: Front, keyed: Server) -> None:
    children = children_of(front.pid) + keyed.pids
    assert len(children) == 8
    for pid in [*children, keyed.process.pid]:
        command_line = Path(f"/proc/{pid}/cmdline").read_text()
        assert "services.cli" in command_line
        assert FLAG_KEY not in command_line and ENVIRONMENT_KEY not in command_line
