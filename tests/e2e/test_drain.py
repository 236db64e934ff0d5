"""A server that is stopped lets its requests end; a second signal, or the timeout, cuts them."""

import concurrent.futures
import os
import signal
import time
from typing import Any

import pytest

from tests.e2e.harness import ALL_READY, Server, pid_of, wait_for

TEXT = "/v1/completions"
NUMBER = 40
BODY: dict[str, Any] = {"prompt": "Which way?", "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def ask(server: Server, number: int, max_tokens: int = 400) -> list[int]:
    answer = server.post(TEXT, {**BODY, "prompt": [number + 5] * 9, "max_tokens": max_tokens})
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def statuses(server: Server) -> list[int]:
    return [server.get(path).status_code for path in ("/live", "/ready", "/health")]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_accepted_requests_end_and_new_ones_are_refused(number: signal.Signals) -> None:
    """Queued ones end as well; a role that dies meanwhile is restarted, and its requests resume."""
    with Server("--max-num-seqs=16") as server, concurrent.futures.ThreadPoolExecutor(NUMBER) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = list(pool.map(lambda index: ask(server, index), range(NUMBER)))
        assert statuses(server) == [200, 200, 200]
        answers = [pool.submit(ask, server, index) for index in range(NUMBER)]
        wait_for(lambda: server.stats().num_running == 16, "some run")
        wait_for(lambda: server.stats().num_waiting == NUMBER - 16, "all others wait")
        os.kill(server.process.pid, number)
        wait_for(lambda: server.get("/health").status_code == 503, "the server drains")
        assert statuses(server) == [200, 503, 503]
        refused = server.post(TEXT, {**BODY, "max_tokens": 1})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        os.kill(pid_of(server, "engine"), signal.SIGKILL)
        assert [answer.result(60) for answer in answers] == expected
        assert server.process.wait(10) == 0


def test_a_server_without_requests_ends_at_once() -> None:
    with Server("--shutdown-timeout=3600") as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(60) == 0
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(("timeout", "signals"), [("0", 1), ("0.5", 1), ("3600", 2)])
def test_shutdown_timeout(timeout: str, signals: int) -> None:
    with Server(f"--shutdown-timeout={timeout}") as server, concurrent.futures.ThreadPoolExecutor() as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        answers = [pool.submit(server.post, TEXT, {**BODY, "max_tokens": 2000, "n": 16}) for _ in range(4)]
        wait_for(lambda: server.stats().num_running == 64, "all run")
        server.process.terminate()
        if signals == 2:
            wait_for(lambda: server.get("/health").status_code == 503, "the server drains")
            server.process.terminate()
        assert server.process.wait(20) == 0
        for answer in answers:
            try:
                assert answer.result(20).status_code == 503
            except Exception:
                assert signals == 2, "the shim was killed"
