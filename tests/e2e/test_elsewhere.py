"""Without Linux-only interfaces a server gives the same answers and restarts every child that dies."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.options.declarations import ROLES
from tests.e2e.harness import ALL_READY, Server, alive, children_of, role_of, wait_for

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).with_name("elsewhere")), str(ROOT)))}
ANSWER = {"seed": 5, "temperature": 1.0, "max_tokens": 30, "ignore_eos": True, "logprobs": 3}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Server]:
    with Server("--max-num-seqs=8", env=ELSEWHERE) as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        yield server


def running_roles(server: Server) -> dict[str, int]:
    """Returns the pid of each role. The launcher has a further child for moments: `ps`, which shows who is stopped."""
    found = {}
    for pid in children_of(server.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[role_of(pid)] = pid
    return {role: found[role] for role in ROLES if role in found}


def answers(server: Server) -> bool:
    try:
        return server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
    except httpx.HTTPError:  # the shim is about to exit
        return False


def test_linux_only_files_are_hidden() -> None:
    """The precondition of the tests below."""
    code = "import os; open('/proc/self/stat')"
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **ELSEWHERE}, capture_output=True, text=True, check=False
    )
    assert "FileNotFoundError: [Errno 2]" in told.stderr


def test_the_answers_are_the_same(elsewhere: Server) -> None:
    with Server("--max-num-seqs=8") as server:
        assert elsewhere.complete("Once upon", **ANSWER) == server.complete("Once upon", **ANSWER)


def test_every_role_that_dies_is_restarted(elsewhere: Server) -> None:
    before = elsewhere.complete("Once upon", **ANSWER)
    for role in ROLES:
        os.kill(running_roles(elsewhere)[role], signal.SIGKILL)
        wait_for(
            lambda role=role: f"the {role} was killed by SIGKILL; it is restarted in 0.0 s" in elsewhere.log,
            "a restart",
        )
        wait_for(lambda: answers(elsewhere), "an answer", 60)
    assert elsewhere.complete("Once upon", **ANSWER) == before


def test_simultaneous_deaths_are_all_reported(elsewhere: Server) -> None:
    """Each is reported, and none stays a zombie."""
    seen = len(re.findall("was killed by SIGKILL", elsewhere.log))
    victims = running_roles(elsewhere).values()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(re.findall("was killed by SIGKILL", elsewhere.log)) == seen + len(ROLES), "all reported")
    wait_for(lambda: not any(Path(f"/proc/{victim}").exists() for victim in victims), "no zombie")
    wait_for(lambda: list(map(alive, running_roles(elsewhere).values())) == [True] * len(ROLES), "all restarted", 60)
