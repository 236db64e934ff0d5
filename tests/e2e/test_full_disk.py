"""A server whose log, recordings and sockets are on a full disk goes on, also through restarts of its roles."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.api import TEXT
from tests.e2e.harness import TANDEM, children_of, role_of, wait_for
from tests.small_disk import fill, small_disk
from tests.unix_socket import connects

LONG: dict[str, Any] = {"prompt": "Which way?", "temperature": 1, "seed": 5, "max_tokens": 600, "ignore_eos": True}
ROLES = ("worker", "engine", "tokenizer")


class FullDisk:
    """A server with everything that it writes on one small disk; its API is on another one."""

    def __init__(self, disk: Path, folder: Path) -> None:
        self.disk, self.log, self.records = disk, disk / "log", disk / "records"
        self.api = folder / "api.sock"
        self.filling = fill(disk)
        (disk / "sockets").mkdir(mode=0o700)
        flags = (f"--runtime-dir={disk}/sockets", f"--flight-recorder-dir={self.records}", f"--uds={self.api}")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*TANDEM, "serve", *flags], stderr=log)
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.api)), base_url="http://localhost", timeout=60
        )

    def is_ready(self) -> bool:
        return connects(self.api) and self._client.get("/health").status_code == 200

    def complete(self) -> Any:
        answer = self._client.post(TEXT, json=LONG)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]

    def pid(self, role: str) -> int:
        return next(pid for pid in children_of(self.process.pid) if role_of(pid) == role)

    def close(self) -> None:
        self._client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0


@pytest.fixture
def server(tmp_path: Path, socket_dir: Path) -> Iterator[FullDisk]:
    with small_disk(tmp_path / "disk") as disk:
        server = FullDisk(disk, socket_dir)
        try:
            wait_for(server.is_ready, "ready", 60)
            yield server
        finally:
            server.close()


def test_a_server_on_a_full_disk_answers_and_restarts(server: FullDisk) -> None:
    expected = server.complete()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete)
        for role in ROLES:
            os.kill(server.pid(role), signal.SIGUSR1 if role == "engine" else signal.SIGKILL)
        assert answer.result() == expected
        os.kill(server.pid("engine"), signal.SIGKILL)
        answer = pool.submit(server.complete)
        assert answer.result() == expected
    assert server.log.read_bytes() == b"" and list(server.records.iterdir()) == []
    server.filling.unlink()
    assert server.complete() == expected
    wait_for(lambda: "log lines are missing here: stderr could not be written (No space left" in _text(server), "told")
    wait_for(lambda: "[shim] request finished" in _text(server), "the log goes on")


def _text(server: FullDisk) -> str:
    return server.log.read_text()
