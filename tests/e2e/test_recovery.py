"""When a process behind the shim is killed, every answer continues with exactly the tokens it would have had."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.api import CHAT, INPUT, TEXT, Json, error_of
from tests.e2e.harness import ALL_READY, Server, pid_of, wait_for

# Forms that are hardly complete before max_tokens.
NUMBERS: Json = {"type": "array", "items": {"type": "integer"}, "minItems": 150, "maxItems": 200}
COUNT: Json = {
    "type": "function",
    "function": {"name": "count", "parameters": {"type": "object", "properties": {"to": NUMBERS}, "required": ["to"]}},
}
JSON_FORMAT: Json = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBERS}}}
THINK: Json = {"chat_template_kwargs": {"enable_thinking": True}}
LENGTH = {"max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
REQUESTS: list[tuple[str, Json]] = [
    (CHAT, {**INPUT[CHAT], **LENGTH, "temperature": 0}),
    (CHAT, {**INPUT[CHAT], **LENGTH, "temperature": 1, "seed": 1, "n": 2}),
    (TEXT, {**INPUT[TEXT], **LENGTH, "temperature": 1, "seed": 2, "logprobs": 2}),
    (TEXT, {**INPUT[TEXT], **LENGTH, "temperature": 0.7, "seed": 3, "stop": ["no such text", "nor this"]}),
    (TEXT, {**INPUT[TEXT], **LENGTH, "temperature": 1, "seed": 4, "frequency_penalty": 0.5, "presence_penalty": 0.5}),
    (TEXT, {**INPUT[TEXT], **LENGTH, "temperature": 1.2, "seed": 5, "skip_special_tokens": False}),
    (TEXT, {**INPUT[TEXT], **LENGTH, "temperature": 1, "seed": 6, "guided_json": NUMBERS}),
    (TEXT, {**INPUT[TEXT], **LENGTH, "temperature": 1, "seed": 7, "guided_regex": "[a-z ]{1500}", "logprobs": 1}),
    (CHAT, {**INPUT[CHAT], **LENGTH, "temperature": 1, "seed": 8, "tools": [COUNT], "tool_choice": "required"}),
    (CHAT, {**INPUT[CHAT], **LENGTH, "temperature": 1, "seed": 9, **JSON_FORMAT, **THINK, "n": 2}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--tokenizer-replicas=2") as running:
        wait_for(lambda: ALL_READY in running.log, "the launcher knows that all are ready")
        yield running


def ask(server: Server, path: str, body: Json) -> Json:
    return seen(server.post(path, body))


def seen(answer: httpx.Response) -> Json:
    """Returns what must not change: text, ids, logprobs, finish reasons, usage."""
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    usage = {name: answer.json()["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return {"choices": choices, "usage": usage}


def ask_all(server: Server) -> list[Json]:
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        return list(pool.map(lambda request: ask(server, *request), REQUESTS))


def test_a_stream_continues_with_the_same_tokens(server: Server) -> None:
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


def test_a_stopped_worker_is_replaced(server: Server) -> None:
    """A stopped process handles no signal but SIGKILL, and answers no message."""
    expected = ask(server, *REQUESTS[0])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, *REQUESTS[0])
        wait_for(lambda: server.stats().num_running == 1, "it runs")
        os.kill(pid_of(server, "worker"), signal.SIGSTOP)
        assert answer.result() == expected
    assert "the worker has been stopped by a signal for " in server.log


def most_wait(server: Server) -> bool:
    try:
        stats = server.stats()
    except grpc.aio.AioRpcError:  # the engine is not there yet
        return False
    return bool(stats.num_running == 2 and stats.num_waiting > 5)


def test_innocent_suspects_are_cleared() -> None:
    """The worker dies twice while most requests wait. Each suspect is retried alone, and continues."""
    with Server("--tokenizer-replicas=2", "--max-num-seqs=2") as server:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        body = {**LENGTH, "max_tokens": 500, "temperature": 1, "prompt": "Which way?"}
        requests = [(TEXT, {**body, "seed": seed}) for seed in range(12)]
        with ThreadPoolExecutor(len(requests)) as pool:
            expected = [*pool.map(lambda request: ask(server, *request), requests)]
            answers = [pool.submit(ask, server, *request) for request in requests]
            for _ in range(2):
                wait_for(lambda: most_wait(server), "two run and most wait", 30)
                os.kill(pid_of(server, "engine"), signal.SIGKILL)
            assert [answer.result() for answer in answers] == expected
        assert "so it starts alone" in server.log


@pytest.mark.parametrize(
    "role", ["worker", *(pytest.param(role, marks=pytest.mark.long) for role in ("engine", "tokenizer"))]
)
def test_a_request_that_kills_repeatedly_is_refused(role: str) -> None:
    """After two deaths it runs alone; after two more it ends with an error.
    Other requests are only delayed."""
    poison = 900
    env = {"PYTHONPATH": _fault_folder(), "TANDEM_TEST_POISON": f"{role}:{poison}"}
    with Server("--tokenizer-replicas=2", env=env) as server, ThreadPoolExecutor(10) as pool:
        wait_for(lambda: ALL_READY in server.log, "the launcher knows that all are ready")
        expected = ask_all(server)
        body = {"prompt": [poison] * 5, "max_tokens": 3}
        running = [pool.submit(ask, server, *request) for request in REQUESTS[:3]]
        wait_for(lambda: server.stats().num_running > 0, "neighbours run")
        refused = pool.submit(server.post, TEXT, body)
        coming = [pool.submit(ask, server, *request) for request in REQUESTS[3:]]
        error = error_of(refused.result(), 500)
        assert error["message"] == f"the {role} died while it ran this request alone"
        assert [one.result() for one in (*running, *coming)] == expected
        deaths = [line for line in server.lines if f"the {role}" in line and "exited with status 9" in line]
        assert len(deaths) == 4 if role == "worker" else 4 <= len(deaths) <= 5
        assert ask(server, *REQUESTS[0]) == expected[0]
        wait_for(lambda: server.stats().num_running + server.stats().num_waiting == 0, "nothing is left")


def _fault_folder() -> str:
    return str(Path(__file__).with_name("faults"))
