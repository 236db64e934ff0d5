"""A worker that hangs is a worker that died: every answer goes on with the tokens that it would have had."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.api import TEXT, Json
from tests.e2e.harness import Server, alive, children_of, wait_for
from tests.e2e.test_processes import WATCHING, argv_of

POISON = 900
BODY: Json = {"prompt": "Which way?", "temperature": 0, "max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
POISONOUS: Json = {"prompt": [POISON] * 5, "temperature": 0, "max_tokens": 5, "return_token_ids": True}


def hanging(how: str, **more: str) -> Server:
    """A server whose steps may take a second, but for the first ten of a worker, which may take five."""
    env = {"PYTHONPATH": str(Path(__file__).with_name("hangs")), "TANDEM_TEST_POISON": str(POISON)}
    return Server("--dtype=float32", "--step-timeout=1", env={**env, "TANDEM_TEST_HANG": how, **more})


def worker_of(server: Server) -> int:
    return next(pid for pid in children_of(server.process.pid) if argv_of(pid)[3:4] == ["worker"])


@pytest.mark.parametrize("how", ["waits", "holds_the_gil"])
def test_step_timeout(how: str, tmp_path: Path) -> None:
    """The worker ends itself, its stacks are in the log; the engine names the step; every answer goes on."""
    once = {"TANDEM_TEST_ONCE": str(tmp_path / "it happened")}
    with hanging(how, **once) as server, ThreadPoolExecutor(2) as pool:
        wait_for(lambda: WATCHING in server.log, "the launcher knows that all are ready")
        expected = server.post(TEXT, BODY).json()["choices"]
        neighbours = [pool.submit(server.post, TEXT, BODY) for _ in range(2)]
        wait_for(lambda: server.stats().num_running == 2, "the neighbours run")
        victim = worker_of(server)
        answer = server.post(TEXT, POISONOUS)
        assert worker_of(server) != victim and not alive(victim)
        for neighbour in neighbours:
            assert neighbour.result().json()["choices"] == expected
        assert answer.json()["choices"] == server.post(TEXT, POISONOUS).json()["choices"]
    assert "the worker ended by signal SIGALRM; it starts again" in server.log
    assert "sitecustomize.py" in server.log, "the stack of whoever hung"
    assert re.search(
        r"the worker hangs: step \d+ \(\d+ tokens\) has run for \S+ s, and its deadline is 1\.0 s", server.log
    )


def test_who_makes_its_worker_hang_again_and_again_is_sent_away() -> None:
    """Its neighbours only wait."""
    with hanging("holds_the_gil") as server, ThreadPoolExecutor(2) as pool:
        wait_for(lambda: WATCHING in server.log, "the launcher knows that all are ready")
        expected = server.post(TEXT, BODY).json()["choices"]
        neighbours = [pool.submit(server.post, TEXT, BODY) for _ in range(2)]
        wait_for(lambda: server.stats().num_running == 2, "the neighbours run")
        refused = server.post(TEXT, POISONOUS)
        assert refused.status_code == 500 and "the worker died" in refused.json()["error"]["message"]
        for neighbour in neighbours:
            assert neighbour.result().json()["choices"] == expected
