"""A client that disconnects or does not read delays no other client and holds no block."""

import io
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.api import (
    CHAT,
    INPUT,
    LONG,
    SEEDED,
    TEXT,
    Json,
    ask,
    assert_idle,
    both,
    choice,
    choices_of,
    events_of,
    fold,
    fresh,
)
from tests.e2e.harness import Server, wait_for


@both
@pytest.mark.parametrize("n", [1, 3])
def test_a_hang_up_stops_a_stream(server: Server, path: str, n: int) -> None:
    before = server.stats().num_steps
    body = {**INPUT[path], **SEEDED, "max_tokens": LONG, "n": n, "stream": True}
    with httpx.stream("POST", server.url + path, json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()
        for _ in range(20):
            next(lines)
        assert server.stats().num_running == n
    assert_idle(server, before)


@both
def test_a_hang_up_stops_a_whole_answer(server: Server, path: str) -> None:
    before = server.stats().num_steps
    body = {**INPUT[path], **SEEDED, "max_tokens": LONG, "n": 2}
    with httpx.Client(trust_env=False) as client, ThreadPoolExecutor() as threads:
        pending = threads.submit(client.post, server.url + path, json=body, timeout=httpx.Timeout(60, read=2))
        wait_for(lambda: server.stats().num_running == 2, "it runs")
        with pytest.raises(httpx.ReadTimeout):
            pending.result()
    assert_idle(server, before)


def test_a_hang_up_stops_all_prompts(server: Server) -> None:
    before = server.stats().num_steps
    body = {"prompt": ["one", "two", "three"], **SEEDED, "max_tokens": LONG, "stream": True}
    with httpx.stream("POST", server.url + TEXT, json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()  # kept: httpx disconnects when the iterator is deleted
        next(lines)
        wait_for(lambda: server.stats().num_running == 3, "all run")
    assert_idle(server, before)


def send_without_reading(server: Server, body: Json) -> socket.socket:
    """A client with a very small receive buffer."""
    url = urlsplit(server.url)
    content = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect((url.hostname, url.port))
    client.sendall(head.encode() + content)
    return client


def read_chunked(client: socket.socket, read_before: bytes = b"") -> list[Json]:
    with client.makefile("rb") as rest:
        reader = io.BytesIO(read_before + rest.read())
    assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
    while reader.readline() != b"\r\n":
        pass
    body = b""
    while size := int(reader.readline(), 16):
        body += reader.read(size)
        reader.readline()
    return events_of(iter(body.decode().split("\n")[:-1]))


def test_a_client_that_does_not_read_delays_no_other(server: Server) -> None:
    """Its answer is generated, merged into few large chunks, and complete when the client reads it.

    It is long, for the system holds up to 4 MB of what a connection sends (tcp_wmem), and these are not merged.
    """
    body = {**SEEDED, "max_tokens": 250, "logprobs": True, "top_logprobs": 20}
    slow = fresh({**INPUT[CHAT], **body, "n": 16, "stream": True, "return_token_ids": True})
    with send_without_reading(server, slow) as client:
        wait_for(lambda: server.stats().num_running == 16, "the slow reader runs")
        assert len(choice(server, TEXT, **SEEDED, max_tokens=50)["token_ids"]) == 50
        wait_for(lambda: server.stats().num_running == 0, "the slow reader's answer is made", 60)
        chunks = read_chunked(client)
    assert len(chunks) < 16 * 250
    whole = choices_of(ask(server, CHAT, **body, n=16))
    for made, expected in zip(fold(chunks), whole, strict=True):
        assert len(made.pop("logprobs")["content"]) == len(expected.pop("logprobs")["content"]) == 250
        assert made == expected


def test_a_client_that_never_reads_may_disconnect(server: Server) -> None:
    before = server.stats().num_steps
    body = {**INPUT[CHAT], **SEEDED, "max_tokens": LONG, "stream": True, "logprobs": True, "top_logprobs": 20}
    with send_without_reading(server, body):
        wait_for(lambda: server.stats().num_running == 1, "it runs")
    assert_idle(server, before)
