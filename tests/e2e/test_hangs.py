"""A worker that hangs is restarted, and every answer continues with the tokens that it would have had."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.api import TEXT, Json
from tests.e2e.harness import ALL_READY, Server, alive, argv_of, children_of, wait_for

POISON = 900
BODY: Json = {"prompt": "Which way?", "temperature": 0, "max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
POISONOUS: Json = {"prompt": [POISON] * 5, "temperature": 0, "max_tokens": 5, "return_token_ids": True}


def hanging(how: str, **more: str) -> Server:
    """A server with a step timeout of one second, and of five seconds for the first ten steps of a worker."""
    env = {"PYTHONPATH": str(Path(__file__).with_name("hangs")), "TANDEM_TEST_POISON": str(POISON)}
    return Server("--dtype=float32", "--step-timeout=1", env={**env, "TANDEM_TEST_HANG": how, **more})


def worker_of(server: Server) -> int:
    return next(pid for pid in children_of(server.process.pid) if argv_of(pid)[3:4] == ["worker"])


@pytest.mark.parametrize("how", [pytest.param("waits", marks=pytest.mark.long), "holds_the_gil"])
def test_step_timeout(how: str, tmp_path: Path) -> None:
    """The worker exits and logs its stacks; the engine logs the step; every answer continues."""
    once = {"TANDEM_TEST_ONCE": str(tmp_path / "it happened")}
    with hanging(how, **once) as server, ThreadPoolExecutor(2) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = server.post(TEXT, BODY).json()["choices"]
        neighbours = [pool.submit(server.post, TEXT, BODY) for _ in range(2)]
        wait_for(lambda: server.stats().num_running == 2, "the neighbours run")
        victim = worker_of(server)
        answer = server.post(TEXT, POISONOUS)
        assert worker_of(server) != victim and not alive(victim)
        for neighbour in neighbours:
            assert neighbour.result().json()["choices"] == expected
        assert answer.json()["choices"] == server.post(TEXT, POISONOUS).json()["choices"]
    assert "the worker was killed by SIGALRM; it is restarted" in server.log
    assert "sitecustomize.py" in server.log, "the stack of the thread that hung"
    assert re.search(
        r"the worker hangs: step \d+ \(\d+ tokens\) has run for \S+ s, and its deadline is 1\.0 s", server.log
    )


@pytest.mark.long
def test_a_request_that_makes_its_worker_hang_repeatedly_is_refused() -> None:
    """Other requests are only delayed."""
    with hanging("holds_the_gil") as server, ThreadPoolExecutor(2) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = server.post(TEXT, BODY).json()["choices"]
        neighbours = [pool.submit(server.post, TEXT, BODY) for _ in range(2)]
        wait_for(lambda: server.stats().num_running == 2, "the neighbours run")
        refused = server.post(TEXT, POISONOUS)
        assert refused.status_code == 500 and "the worker died" in refused.json()["error"]["message"]
        for neighbour in neighbours:
            assert neighbour.result().json()["choices"] == expected
