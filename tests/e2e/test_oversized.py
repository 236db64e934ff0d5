"""Requests that can never fit are refused at the first check, at once, without delaying others."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from tests.e2e.harness import JSON_TYPE, Server, wait_for

MILLION = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--max-model-len=512") as running:
        yield running


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        ([1] * MILLION, f"{MILLION}"),
        ([[1], [1] * 600], "600"),
        ("lorem ipsum " * MILLION, "at least"),
        ([1] * 512, "512"),
    ],
    ids=["ids", "second-list", "text", "edge"],
)
def test_a_prompt_that_cannot_fit_is_refused_with_both_lengths(server: Server, prompt: Any, count: str) -> None:
    response = server.post("/v1/completions", {"prompt": prompt, "n": 128})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert count in message and "maximum context length is 512" in message


def test_many_oversized_prompts_delay_no_other_request(server: Server) -> None:
    """Sends ten prompts of 12 MB at once. A short prompt is answered meanwhile."""
    huge = {"prompt": "lorem ipsum " * MILLION}
    with ThreadPoolExecutor(10) as threads:
        sent = [threads.submit(server.post, "/v1/completions", huge) for _ in range(10)]
        started = time.monotonic()
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        assert time.monotonic() - started < 20
        assert {one.result().status_code for one in sent} == {400}
    assert "lost" not in server.log, "no stream between the processes broke"


def test_a_body_beyond_the_limit_is_refused(server: Server) -> None:
    url = httpx.URL(server.url)
    connection = HTTPConnection(url.host, url.port, timeout=60)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(64 * 2**20 + 1))
    connection.endheaders()  # it is refused before it is sent
    response = connection.getresponse()
    assert response.status == 413 and b"the limit set by max_request_body_bytes" in response.read()
    connection.close()


def test_a_body_that_grows_when_rewritten_breaks_no_stream(server: Server) -> None:
    """1e15 has four characters in the body, and eighteen in the rewritten JSON."""
    raw = '{"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": [%s]}}'
    content = raw % ",".join(["1e15"] * 3 * MILLION)
    response = httpx.post(
        server.url + "/v1/chat/completions", content=content, headers=JSON_TYPE, timeout=120, trust_env=False
    )
    assert response.status_code == 400 and "bytes as an internal message, but at most" in response.text
    assert "lost" not in server.log


def test_long_names_are_quoted_in_short(server: Server) -> None:
    name = "\x1b[31mred\x9b" + "x" * MILLION
    response = server.post("/v1/completions", {"prompt": "a", name: 1})
    assert response.status_code == 400 and len(response.content) < 3000
    line = wait_for(lambda: [line for line in server.lines if "31mred" in line], "a log line")[0]
    assert len(line) < 500 and "\\x1b[31mred\\x9b" in line and "\x1b" not in line


def test_prompts_times_n_are_bounded(server: Server) -> None:
    response = server.post("/v1/completions", {"prompt": ["a"] * 100, "n": 100})
    assert response.status_code == 400 and "at most 1024" in response.json()["error"]["message"]


def test_deeply_nested_arguments_of_a_tool_call_are_the_clients_fault(server: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]
    response = server.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 400, json.dumps(response.json())
    assert response.json()["error"]["param"] == "messages"
