"""Options of the shim and the launcher: address, port, API key, directory of the sockets."""

import contextlib
import hashlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from services.machine import authority, loopback
from services.process.runtime_dir import runtime_dir
from tests.addresses import free_port
from tests.e2e.harness import ALL_READY, TANDEM, Server, children_of, role_of, wait_for

FLAG_KEY, SECOND_KEY, ENVIRONMENT_KEY = "key-of-the-flag", "second-key-of-the-flag", "key-of-the-environment"
ADMIN_KEY, FILE_KEY = "key-of-the-admin", "key-of-the-file"
PAGE = "https://chat.example"
HOST = "127.0.0.2" if loopback() == "127.0.0.1" else loopback()


@dataclass(frozen=True)
class Front:
    """`tandem serve` on a port of the test's choice; `Server` always uses a free one."""

    port: int
    pid: int
    runtime_dir: Path
    folder: Path  # of the log and the file with keys

    def get(self, path: str, key: str | None = None, host: str = HOST, **headers: str) -> httpx.Response:
        return self.ask("GET", path, key, host, **headers)

    def ask(self, method: str, path: str, key: str | None = None, host: str = HOST, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"http://{authority(host, self.port)}{path}"
        return httpx.request(method, url, headers=sent, timeout=30, trust_env=False)

    def preflight(self, **more: str) -> httpx.Response:
        asked = {"Origin": PAGE, "Access_Control_Request_Method": "POST", **more}
        return self.ask("OPTIONS", "/v1/completions", **asked)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.get("/health").status_code == 200
        return False


def line(name: str, group: str, key: str) -> str:
    """Returns a line of a file with keys."""
    return f"{name}, {group}, {hashlib.sha256(key.encode()).hexdigest()}\n"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder, port = tmp_path_factory.mktemp("front"), free_port()
    with runtime_dir(None) as short, (folder / "log").open("w") as log:
        (folder / "keys").write_text(line("alice", "team", FILE_KEY))
        args = [f"--host={HOST}", f"--port={port}", f"--runtime-dir={short}/deep/run"]
        args += [f"--api-key={FLAG_KEY}", "--api-key", SECOND_KEY, "--admin-api-key", ADMIN_KEY]
        args += [f"--api-key-file={folder / 'keys'}", '--allowed-hosts=["api.example"]', "--allow-credentials"]
        args += [f'--allowed-origins=["{PAGE}"]', '--allowed-methods=["POST"]', '--allowed-headers=["x-mine"]']
        env = {**os.environ, "TANDEM_API_KEY": ENVIRONMENT_KEY}
        process = subprocess.Popen([*TANDEM, "serve", *args], stderr=log, env=env)
        try:
            found = Front(port, process.pid, short / "deep" / "run", folder)
            wait_for(lambda: ALL_READY in found.log or process.poll() is not None, "all are ready", 60)
            assert process.poll() is None and found.healthy(), found.log
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
    assert names == {"engine.sock", "worker.sock", "tokenizer-0.sock", "lock", "launcher.json"}
    assert stat.S_IMODE(front.runtime_dir.stat().st_mode) == 0o700


def test_api_key(front: Front) -> None:
    for key in (FLAG_KEY, SECOND_KEY):
        assert front.get("/v1/models", key).status_code == 200
    for wrong in (None, FLAG_KEY + "x", FLAG_KEY[:-1], ENVIRONMENT_KEY):
        response = front.get("/v1/models", wrong)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    assert front.get("/health").status_code == 200


def test_api_key_from_the_environment(keyed: Server) -> None:
    assert keyed.get("/v1/models").status_code == 401
    assert keyed.get("/v1/models", headers={"Authorization": f"Bearer {ENVIRONMENT_KEY}"}).status_code == 200


def test_api_keys_are_on_no_command_line(front: Front, keyed: Server) -> None:
    """Those of all processes, the launcher's included, and in the environment only of the two that need them."""
    children = children_of(front.pid) + keyed.pids
    assert len(children) >= 8, "spare processes come later"
    knowing = []
    for pid in [*children, front.pid, keyed.process.pid]:
        command_line, environment = (Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ"))
        assert "services.cli" in command_line
        assert not [key for key in (FLAG_KEY, SECOND_KEY, ADMIN_KEY, ENVIRONMENT_KEY) if key in command_line]
        if "key-of-the" in environment:
            knowing.append(role_of(pid))
    assert sorted(knowing) == ["serve", "serve", "shim", "shim"]


def test_admin_api_key(front: Front) -> None:
    reset = "/reset_prefix_cache"
    assert [front.ask("POST", reset, key).status_code for key in (None, FLAG_KEY, FILE_KEY, ADMIN_KEY)] == [
        401,
        403,
        403,
        200,
    ]
    assert front.get("/v1/models", ADMIN_KEY).status_code == 200


def test_api_key_file(front: Front) -> None:
    """SIGHUP to the launcher: new keys open, old ones no more, a wrong file changes nothing, a stream goes on."""
    assert front.get("/v1/models", FILE_KEY).status_code == 200
    body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {FILE_KEY}"}
    url = f"http://{authority(HOST, front.port)}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60, trust_env=False) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: {")
        (front.folder / "keys").write_text(line("bob", "", "new-key"))
        os.kill(front.pid, signal.SIGHUP)
        wait_for(lambda: front.get("/v1/models", "new-key").status_code == 200, "the new key opens")
        assert front.get("/v1/models", FILE_KEY).status_code == 401
        assert "again: 4 keys are valid" in front.log
        *_, last = (text for text in lines if text)
        assert last == "data: [DONE]"
    (front.folder / "keys").write_text(line("bob", "", "new-key") + "carol, new-key\n")
    os.kill(front.pid, signal.SIGHUP)
    wait_for(lambda: "line 2: it has 2 fields" in front.log, "the wrong line is reported")
    assert front.get("/v1/models", "new-key").status_code == 200
    assert front.log.count("the keys stay as they were") == 1 and "restarted in" not in front.log


def test_hanging_up_without_a_key_file_has_no_effect(keyed: Server) -> None:
    """It ended the server."""
    os.kill(keyed.process.pid, signal.SIGHUP)
    wait_for(lambda: "SIGHUP has no effect: there is no --api-key-file" in keyed.log, "the shim says so")
    assert keyed.process.poll() is None and keyed.get("/health").status_code == 200
    assert set(keyed.pids) <= set(children_of(keyed.process.pid))


def test_allowed_hosts(front: Front, keyed: Server) -> None:
    for host, status in (("api.example", 200), ("api.example:80", 200), ("evil.example", 403), ("localhost", 200)):
        assert front.get("/version", Host=host).status_code == status
    assert keyed.get("/version", headers={"Host": "api.example"}).status_code == 403
    assert keyed.get("/version", headers={"Host": "localhost"}).status_code == 200


def test_allowed_origins(front: Front, keyed: Server) -> None:
    assert front.get("/version", Origin=PAGE).headers["access-control-allow-origin"] == PAGE
    assert front.get("/version", Origin="https://evil.example").status_code == 403
    assert front.get("/v1/models", Origin=PAGE).status_code == 401
    assert front.preflight().status_code == 200
    for server_headers in ({"Origin": PAGE}, {"Origin": PAGE, "Authorization": f"Bearer {ENVIRONMENT_KEY}"}):
        assert keyed.get("/v1/models", headers=server_headers).status_code == 403
    assert keyed.get("/version", headers={"Origin": keyed.url}).status_code == 200


def test_allowed_methods(front: Front) -> None:
    assert front.preflight(Access_Control_Request_Method="DELETE").status_code == 400
    assert front.preflight().headers["access-control-allow-methods"] == "POST"


def test_allowed_headers(front: Front) -> None:
    assert front.preflight(Access_Control_Request_Headers="x-mine").status_code == 200
    assert front.preflight(Access_Control_Request_Headers="x-other").status_code == 400


def test_allow_credentials(front: Front) -> None:
    assert front.get("/version", Origin=PAGE).headers["access-control-allow-credentials"] == "true"
    assert front.preflight().headers["access-control-allow-credentials"] == "true"
