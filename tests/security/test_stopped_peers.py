"""Roles that are started alone, over TCP: what a signal has stopped is dead for its peers within three seconds."""

import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.harness import PLAIN_HTTP, wait_for
from tests.security.deployment import Deployment

DEAD_SECONDS = 3.0
NOTICE_SECONDS = 1.5  # until the shim knows what the engine knows, and a probe has asked, on a slow machine


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment")).running() as running:
        yield running


def status(url: str) -> int:
    return httpx.get(url, timeout=5, **PLAIN_HTTP).status_code


@pytest.mark.parametrize("role", ["tokenizer", "engine", "worker"])
def test_the_shim_is_not_ready_within_three_seconds_of_a_stop(deployment: Deployment, role: str) -> None:
    """Only until it goes on: no launcher replaces it. A request waits meanwhile, and /health stays 200."""
    url = deployment.url
    wait_for(lambda: status(f"{url}/ready") == 200, "ready", 30)
    pid = deployment.processes[role].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        wait_for(lambda: status(f"{url}/ready") == 503, "not ready")
        assert time.monotonic() - stopped < DEAD_SECONDS + NOTICE_SECONDS
        assert status(f"{url}/live") == status(f"{url}/health") == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 3}, timeout=60, **PLAIN_HTTP)
    assert answer.status_code == 200
