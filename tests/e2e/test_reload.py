"""`tandem reload` replaces every process behind the shim of a running server, and no request notices."""

import concurrent.futures
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.harness import ALL_READY, SPARES, TANDEM, Server, alive, pid_of, wait_for

TEXT = "/v1/completions"
BODY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
ROLES = ("tokenizer", "engine", "worker")


def ask(server: Server, number: int) -> list[int]:
    answer = server.post(TEXT, {**BODY, "prompt": [number % 40 + 5] * 9, "max_tokens": 100 + number % 40})
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def pids(server: Server) -> list[int]:
    return [pid_of(server, role) for role in ROLES]


def reload(*args: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*TANDEM, "reload", *args], capture_output=True, text=True, timeout=120, check=False)


def reloaded(server: Server) -> None:
    ended = reload(f"--runtime-dir={server.runtime_dir}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "3 processes are replaced"
    assert "ERROR" not in server.log


def stopped_in_turn(server: Server) -> None:
    """SIGTERM to each process, as an orchestrator's rolling restart."""
    for role in ROLES:
        pid = pid_of(server, role)
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not alive(pid), "it has ended", 40)  # noqa: B023
        wait_for(lambda: server.get("/ready").status_code == 200, "the next one is ready", 40)


@pytest.mark.parametrize("replace", [reloaded, pytest.param(stopped_in_turn, marks=pytest.mark.long)])
def test_a_replacement_under_load(replace: Callable[[Server], None]) -> None:
    with Server(SPARES) as server, concurrent.futures.ThreadPoolExecutor(24) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = list(pool.map(lambda index: ask(server, index), range(40)))
        before, shim = pids(server), pid_of(server, "shim")
        done = pool.submit(replace, server)
        number = 0
        while not done.done():
            indices = range(number, number + 20)
            assert list(pool.map(lambda index: ask(server, index), indices)) == [expected[i % 40] for i in indices]
            number += 20
        done.result()
        assert all(old != new for old, new in zip(before, pids(server), strict=True))
        assert pid_of(server, "shim") == shim
        assert number >= 20, "requests ran meanwhile"


def test_a_second_reload_at_once_is_refused_and_a_stop_ends_one() -> None:
    with Server(SPARES) as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        os.kill(server.process.pid, signal.SIGUSR2)
        wait_for(lambda: "a reload begins: tokenizer, engine, worker" in server.log, "it begins")
        second = reload(f"--runtime-dir={server.runtime_dir}")
        assert (second.returncode, second.stderr) == (1, "tandem reload: error: a reload is running already\n")
        server.process.terminate()
        assert server.process.wait(30) == 0
    gone = reload(f"--runtime-dir={server.runtime_dir}")
    assert gone.returncode == 1 and f"no `tandem serve` runs with --runtime-dir {server.runtime_dir}" in gone.stderr
