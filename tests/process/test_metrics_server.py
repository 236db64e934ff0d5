"""The metrics server: its answers, its token, and slow or broken clients."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from services.errors import Fatal
from services.machine import authority
from services.machine.listen import listen
from services.process import metrics_server
from services.process.metrics_server import HealthChecks, MetricsServer
from services.security.metrics_token import metrics_token, token_to_ask_for
from tests.e2e.harness import PLAIN_HTTP
from tests.security.peers import OURS

READY, LIVE = {"value": True}, {"value": True}
CHECKS = HealthChecks(lambda: LIVE["value"], lambda: READY["value"], lambda: READY["value"])


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    front = listen(None, 0)
    where = front.getsockname()[:2]
    with MetricsServer(front, registry, CHECKS):
        yield where


def get(address: tuple[str, int], path: str, method: str = "GET", **kwargs: Any) -> httpx.Response:
    return httpx.request(method, f"http://{authority(*address)}{path}", **PLAIN_HTTP, **kwargs)


def test_metrics_and_health(address: tuple[str, int]) -> None:
    for path in ("/metrics", "/metrics?name[]=things"):
        assert "things_total 3.0" in get(address, path).text
    assert get(address, "/health").status_code == get(address, "/health", "HEAD").status_code == 200
    assert get(address, "/metrics", "HEAD").text == ""
    assert get(address, "/else").status_code == 404
    READY["value"] = False
    try:
        assert [get(address, path).status_code for path in ("/live", "/ready")] == [200, 503]
        assert get(address, "/health").status_code == 503
    finally:
        READY["value"] = True


def test_a_process_without_progress_is_not_ready(address: tuple[str, int]) -> None:
    LIVE["value"] = False
    try:
        assert [get(address, path).status_code for path in ("/live", "/ready", "/health")] == [503, 503, 200]
    finally:
        LIVE["value"] = True


def test_garbage_and_disconnects_are_not_logged(address: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    for garbage in (b"", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n"):
        with socket.create_connection(address) as client:
            client.sendall(garbage)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # reset
    assert get(address, "/metrics").status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("pieces", [b"", b"GET /health HTTP/1.1\r\nA: "], ids=["silent", "byte by byte"])
def test_slow_clients_do_not_block_others(address: tuple[str, int], pieces: bytes) -> None:
    """MAX_CONNECTIONS silent connections must not make /health unreachable."""
    before = threading.active_count()
    slow_clients = [socket.create_connection(address) for _ in range(3 * metrics_server.MAX_CONNECTIONS)]
    try:
        for _ in range(5):
            for client in slow_clients[-metrics_server.MAX_CONNECTIONS :]:
                with contextlib.suppress(OSError):  # the server closed it
                    client.sendall(pieces)
            began = time.monotonic()
            assert get(address, "/health").status_code == 200
            assert time.monotonic() - began < 5
        slow_clients[0].settimeout(5)
        assert slow_clients[0].recv(1) == b"", "the oldest connection is closed"
        assert threading.active_count() < before + 2 * metrics_server.MAX_CONNECTIONS
    finally:
        for client in slow_clients:
            client.close()


def test_metrics_require_the_token() -> None:
    front = listen(None, 0)
    where = front.getsockname()[:2]
    with MetricsServer(front, CollectorRegistry(), CHECKS, "secret-token"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret-token"},
            {"Authorization": "ü"},
        ):
            refused = get(where, "/metrics", headers={name: value.encode() for name, value in headers.items()})
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert get(where, "/metrics", headers={"Authorization": "Bearer secret-token"}).status_code == 200
        assert get(where, "/health").status_code == 200


def test_an_address_that_other_machines_can_reach_requires_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    with listen(None, 0) as near, listen("0.0.0.0", 0) as far:
        assert token_to_ask_for(near, None, None) is token_to_ask_for(near, None, OURS) is None
        assert token_to_ask_for(near, str(file), None) == token_to_ask_for(far, str(file), OURS) == "abc"
        derived = token_to_ask_for(far, None, OURS)
        assert derived == metrics_token(None, OURS) and derived is not None and len(derived) == 64
        with pytest.raises(
            Fatal, match="--metrics-listen: other machines can reach 0.0.0.0, so /metrics needs a token"
        ):
            token_to_ask_for(far, None, None)


@pytest.mark.parametrize("content", ["", "two words", "\x01", "ü"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(Fatal, match=f"--metrics-token-file: {file}"):
        metrics_token(str(file), None)
