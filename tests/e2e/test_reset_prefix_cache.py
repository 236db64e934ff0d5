"""POST /reset_prefix_cache reaches every engine through any tokenizer; the next prompt has no prefix hits."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.api import TEXT, Json, error_of
from tests.e2e.harness import ALL_READY, Server, children_of, role_of, wait_for

RESET = "/reset_prefix_cache"
KEY = {"Authorization": "Bearer secret"}
PROMPT = list(range(100, 150))  # three blocks of 16, and two tokens


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--dtype=float32", "--tokenizer-replicas=2", "--api-key=secret", "--resume-wait=2") as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


def reset(server: Server, query: str = "") -> httpx.Response:
    return server.post(RESET + query, {}, headers=KEY)


def ask(server: Server, prompt: list[int], **more: object) -> Json:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True, **more}
    response = server.post(TEXT, body, headers=KEY)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def cached_tokens(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_hits_before_and_none_after(server: Server) -> None:
    for salt in ("", "salt"):
        answers = [ask(server, PROMPT, cache_salt=salt) for _ in range(2)]
        assert list(map(cached_tokens, answers)) == [0, 48], "salts are apart"
    response = reset(server)
    assert (response.status_code, response.json()) == (200, {"success": True})
    for salt in ("", "salt"):
        again = [ask(server, PROMPT, cache_salt=salt) for _ in range(2)]
        assert list(map(cached_tokens, again)) == [0, 48]
        assert again[0]["choices"] == again[1]["choices"] == answers[0]["choices"]


def test_running_answers_do_not_change(server: Server) -> None:
    body = {"max_tokens": 500, "cache_salt": "running"}
    expected = ask(server, PROMPT, **body)
    with ThreadPoolExecutor(3) as pool:
        before = server.stats().num_steps
        running = [pool.submit(ask, server, PROMPT, **body) for _ in range(3)]
        wait_for(lambda: server.stats().num_running == 3 and server.stats().num_steps > before + 20, "all run")
        while not all(one.done() for one in running):
            assert reset(server).status_code == 200
        assert all(one.result()["choices"] == expected["choices"] for one in running)


def test_it_needs_the_key_and_takes_no_parameter(server: Server) -> None:
    error_of(server.post(RESET, {}), 401)
    error_of(server.get(RESET, headers=KEY), 405)
    error = error_of(reset(server, "?reset_running_requests=true"), 400)
    assert (error["message"], error["param"]) == (
        "unsupported parameter: reset_running_requests",
        "reset_running_requests",
    )


def test_an_engine_that_is_down_is_reported(server: Server) -> None:
    """The launcher is stopped meanwhile, so that the engine stays down until its absence is seen."""
    launcher = server.process.pid
    engine = next(pid for pid in children_of(launcher) if role_of(pid) == "engine")
    os.kill(launcher, signal.SIGSTOP)
    try:
        os.kill(engine, signal.SIGKILL)
        response = wait_for(lambda: (found := reset(server)).status_code != 200 and found, "it is seen to be gone")
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert "not every" in error_of(response, 503)["message"]
    assert int(response.headers["retry-after"]) >= 1
    wait_for(lambda: reset(server).status_code == 200, "it is there again", 30)
