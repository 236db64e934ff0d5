"""A stream goes on while processes die, and a request that kills is found. Kills at random are in tests/recovery."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import TEXT
from tests.e2e.harness import Server, children_of, wait_for
from tests.e2e.test_processes import WATCHING, argv_of

LENGTH = {"max_tokens": 400, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--dtype=float32", "--tokenizer-replicas=2") as running:
        wait_for(lambda: WATCHING in running.log, "the launcher knows that all are ready")
        yield running


def pid_of(server: Server, role: str) -> int:
    return next(pid for pid in children_of(server.process.pid) if argv_of(pid)[3:4] == [role])


def test_a_stream_goes_on_without_a_seam(server: Server) -> None:
    body: dict[str, Any] = {**LENGTH, "temperature": 1, "seed": 9, "stream": True}
    with server.openai() as client:
        whole = client.completions.create(model="demo", prompt="Which way?", extra_body={**body, "stream": False})
        for role in ("engine", "worker"):
            text = ""
            for chunk in client.completions.create(model="demo", prompt="Which way?", extra_body=body, stream=True):
                text += chunk.choices[0].text
                if len(text) > 50 and role:
                    os.kill(pid_of(server, role), signal.SIGKILL)
                    role = ""
            assert text == whole.choices[0].text


def test_who_kills_its_worker_again_and_again_is_sent_away() -> None:
    """Its neighbours only wait: two deaths make it run alone, the third one ends it with an error."""
    poison = 900
    env = {"PYTHONPATH": _fault_folder(), "TANDEM_TEST_POISON": str(poison)}
    with Server("--dtype=float32", env=env) as server, ThreadPoolExecutor(4) as pool:
        wait_for(lambda: WATCHING in server.log, "the launcher knows that all are ready")
        body = {"prompt": "Which way?", "temperature": 0, **LENGTH}
        expected = server.post(TEXT, body).json()["choices"]
        neighbours = [pool.submit(server.post, TEXT, body) for _ in range(2)]
        wait_for(lambda: server.stats().num_running == 2, "the neighbours run")
        refused = server.post(TEXT, {"prompt": [poison] * 5, "max_tokens": 3})
        assert refused.status_code == 500
        assert refused.json()["error"]["message"] == "the worker died 3 times at this request"
        for neighbour in neighbours:
            assert neighbour.result().json()["choices"] == expected


def _fault_folder() -> str:
    return str(Path(__file__).with_name("faults"))
