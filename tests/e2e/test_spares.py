"""A spare process takes over at once when another process of its role ends, and streams go on with the same tokens."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.process.spare import WAITING_NAME
from tests.e2e.api import TEXT, Json
from tests.e2e.harness import ALL_READY, SPARES, Server, alive, argv_of, children_of, name_of, pid_of, role_of, wait_for

ROLES = ("tokenizer", "engine", "worker")
BODY: Json = {"prompt": "Which way?", "temperature": 0, "max_tokens": 400, "ignore_eos": True}


def spare_of(server: Server, role: str) -> int:
    """Returns the spare process of a role; 0 if it has not loaded what it can."""
    found = [pid for pid in children_of(server.process.pid) if argv_of(pid)[3:4] == [role]]
    return next((pid for pid in found if name_of(pid) == WAITING_NAME), 0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(SPARES) as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


def test_a_spare_loads_at_a_low_priority_unless_there_was_a_fault(server: Server) -> None:
    spare = wait_for(lambda: spare_of(server, "engine"), "a spare")
    assert "--load-gently" in argv_of(spare)
    os.kill(pid_of(server, "engine"), signal.SIGKILL)
    wait_for(lambda: role_of(spare) == "engine", "it takes over")
    assert "--load-gently" not in argv_of(wait_for(lambda: spare_of(server, "engine"), "another one"))


@pytest.mark.parametrize("role", ROLES)
def test_the_spare_takes_over_in_the_middle_of_a_stream(server: Server, role: str) -> None:
    """Twice: each spare that took over is followed by the next one."""
    expected = server.post(TEXT, BODY).json()["choices"]
    taken_over = f"the spare {role} takes over as the {role}"
    before = server.log.count(taken_over)
    for count in (before + 1, before + 2):
        spare = wait_for(lambda: spare_of(server, role), "a spare")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.post, TEXT, BODY)
            wait_for(lambda: server.stats().num_running == 1, "it runs")
            os.kill(pid_of(server, role), signal.SIGKILL)
            assert answer.result().json()["choices"] == expected
        assert pid_of(server, role) == spare
        assert server.log.count(taken_over) == count


def test_the_spare_serves_the_metrics_of_the_process_before_it(server: Server) -> None:
    spare, line = wait_for(lambda: spare_of(server, "tokenizer"), "a spare"), "[tokenizer] metrics on "
    os.kill(pid_of(server, "tokenizer"), signal.SIGKILL)
    wait_for(lambda: role_of(spare) == "tokenizer", "it takes over")
    wait_for(lambda: server.post(TEXT, BODY).status_code == 200, "it serves")
    addresses = {found.split(line)[1] for found in server.lines if line in found}
    assert len(addresses) == 1
    assert 'process="tokenizer"' in server.metrics().text


def test_a_stopped_spare_is_replaced(server: Server) -> None:
    spare = wait_for(lambda: spare_of(server, "engine"), "a spare")
    os.kill(spare, signal.SIGSTOP)
    wait_for(lambda: not alive(spare), "it is killed")
    assert wait_for(lambda: spare_of(server, "engine"), "another one") != spare
    assert "the spare engine has been stopped by a signal for" in server.log


def test_a_killed_launcher_leaves_no_spare() -> None:
    with Server(SPARES) as server:
        spares = [wait_for(lambda role=role: spare_of(server, role), "a spare") for role in ROLES]
        server.process.kill()
        wait_for(lambda: not any(map(alive, spares)), "the spares have ended")


def test_spare_processes() -> None:
    """Without them a process that ended is started anew."""
    with Server() as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        victim = pid_of(server, "tokenizer")
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: server.log.count("tokenizer loaded") == 2, "a new one")
        words = {word for pid in children_of(server.process.pid) for word in argv_of(pid)}
        assert not any(word.startswith("--spare-fd") for word in words)
        wait_for(lambda: server.post(TEXT, BODY).status_code == 200, "it serves")
