"""New requests wait while the processes behind the shim restart, for as long as --resume-wait says."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.api import TEXT, Json
from tests.e2e.harness import ALL_READY, SPARES, Server, pid_of, wait_for

BODY: Json = {"prompt": "Which way?", "temperature": 0, "max_tokens": 5, "ignore_eos": True}


def is_ready(server: Server) -> bool:
    return server.get("/ready").status_code == 200


def health_without_worker(server: Server) -> int:
    """Kills the worker if there is a new one. Returns the status of the shim's /health."""
    with contextlib.suppress(StopIteration, ProcessLookupError):
        os.kill(pid_of(server, "worker"), signal.SIGKILL)
    return server.get("/health").status_code


def test_resume_wait() -> None:
    """Without a wait, a request is refused until the next worker is there."""
    with Server("--resume-wait=0") as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        os.kill(pid_of(server, "worker"), signal.SIGKILL)
        wait_for(lambda: not is_ready(server), "the worker is gone")
        refused = server.post(TEXT, BODY)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["message"].startswith("no worker has been connected for ")
        wait_for(lambda: health_without_worker(server) == 503, "the shim knows that new requests are refused")
        wait_for(lambda: is_ready(server), "the next worker is there", 60)
        assert server.post(TEXT, BODY).status_code == 200


def test_new_requests_wait_through_the_death_of_all_processes_behind_the_shim() -> None:
    with Server(SPARES) as server, ThreadPoolExecutor(40) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = server.post(TEXT, BODY).json()["choices"]
        for role in ("tokenizer", "engine", "worker"):
            os.kill(pid_of(server, role), signal.SIGKILL)
        wait_for(lambda: not is_ready(server), "they are gone")
        answers = [pool.submit(server.post, TEXT, BODY) for _ in range(40)]
        counts = pool.submit(server.post, "/tokenize", {"prompt": "Which way?"})
        assert server.get("/health").status_code == 200
        assert [answer.result(60).json()["choices"] for answer in answers] == [expected] * 40
        assert counts.result(60).status_code == 200
