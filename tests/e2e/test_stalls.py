"""A process whose event loop is stuck, or that is stopped, is replaced; one whose machine stood still goes on."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.api import TEXT, Json
from tests.e2e.harness import ALL_READY, SPARES, Server, alive, children_of, pid_of, role_of, wait_for

BODY: Json = {"prompt": "Which way?", "temperature": 0, "max_tokens": 1500, "ignore_eos": True}
STALL_SECONDS = 10.0
STUCK_EVENT_LOOP, STUCK_BUSY_LOOP = signal.SIGUSR2, signal.SIGWINCH
STUCK = Path(__file__).with_name("stuck")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Its roles hang at some signals: tests/e2e/stuck."""
    with Server(SPARES, "--tokenizer-replicas=2", env={"PYTHONPATH": str(STUCK)}) as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


@pytest.fixture(scope="module")
def expected(server: Server) -> Json:
    return answer_of(server)


def answer_of(server: Server) -> Json:
    response = server.post(TEXT, BODY)
    assert response.status_code == 200, response.text
    choices: Json = response.json()["choices"]
    return choices


@pytest.mark.parametrize("order", ["launcher first", pytest.param("launcher last", marks=pytest.mark.long)])
def test_a_machine_that_stands_still_restarts_nothing(server: Server, expected: Json, order: str) -> None:
    """Launcher and children stop at once for ten seconds. No process is replaced, and no byte of a stream is lost."""
    pids = children_of(server.process.pid)
    num_lines = len(server.lines)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(answer_of, server)
        wait_for(lambda: server.stats().num_running == 1, "it runs")
        everything = [server.process.pid, *pids]
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + STALL_SECONDS
        wait_for(lambda: time.monotonic() > end, "the time has passed", 2 * STALL_SECONDS)
        for pid in everything if order == "launcher first" else reversed(everything):
            os.kill(pid, signal.SIGCONT)
        assert answer.result() == expected
    assert children_of(server.process.pid) == pids
    assert "restarted" not in "".join(server.lines[num_lines:])


@pytest.mark.parametrize(
    ("role", "number"),
    [
        ("tokenizer", STUCK_EVENT_LOOP),
        pytest.param("tokenizer", signal.SIGSTOP, marks=pytest.mark.long),
        pytest.param("engine", STUCK_EVENT_LOOP, marks=pytest.mark.long),
        ("engine", STUCK_BUSY_LOOP),
        pytest.param("engine", signal.SIGSTOP, marks=pytest.mark.long),
    ],
)
def test_what_hangs_is_killed_and_the_stream_goes_on(
    server: Server, expected: Json, role: str, number: signal.Signals
) -> None:
    """Within three seconds, plus what a busy machine adds. Both tokenizers hang: one has the stream."""
    num_lines = len(server.lines)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(answer_of, server)
        wait_for(lambda: server.stats().num_running == 1, "it runs")
        victims = [pid for pid in children_of(server.process.pid) if role_of(pid) == role]
        began = time.monotonic()
        for victim in victims:
            os.kill(victim, number)
        wait_for(lambda: not any(map(alive, victims)), "they are killed")
        seconds = time.monotonic() - began
        assert answer.result() == expected
    what = "been stopped by a signal for" if number == signal.SIGSTOP else "made no progress for"
    killed = rf"the {role}\S* has {what} \S+ s and was killed; it is restarted in \d\.\d s"
    assert len(re.findall(killed, "".join(server.lines[num_lines:]))) == len(victims)
    assert seconds < 4.0


def test_a_shim_that_hangs_is_killed(server: Server, expected: Json) -> None:
    victim = pid_of(server, "shim")
    num_ready = server.log.count("ready on")
    os.kill(victim, STUCK_EVENT_LOOP)
    wait_for(lambda: not alive(victim), "it is killed")
    wait_for(lambda: server.log.count("ready on") > num_ready, "ready again")
    assert answer_of(server) == expected
