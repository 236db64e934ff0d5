"""A process's own port: what it answers, and callers that it must survive."""

import logging
import socket
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from services import monitor
from services.listen import listen
from services.machine import authority
from services.monitor import Monitor
from tests.e2e.harness import PLAIN_HTTP, wait_for

READY = {"value": True}


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    front = listen(None, 0)
    where = front.getsockname()[:2]
    with Monitor(front, registry, lambda: READY["value"]):
        yield where


def get(address: tuple[str, int], path: str, method: str = "GET") -> httpx.Response:
    return httpx.request(method, f"http://{authority(*address)}{path}", **PLAIN_HTTP)


def test_metrics_and_health(address: tuple[str, int]) -> None:
    for path in ("/metrics", "/metrics?name[]=things"):
        assert "things_total 3.0" in get(address, path).text
    assert get(address, "/health").status_code == get(address, "/health", "HEAD").status_code == 200
    assert get(address, "/metrics", "HEAD").text == ""
    assert get(address, "/else").status_code == 404
    READY["value"] = False
    try:
        assert get(address, "/health").status_code == 503
    finally:
        READY["value"] = True


def test_garbage_and_hang_ups_are_no_events(address: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    for garbage in (b"", b"\x00\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n"):
        with socket.create_connection(address) as caller:
            caller.sendall(garbage)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # reset
    assert get(address, "/metrics").status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_callers_that_dawdle_are_limited(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    dawdlers = [socket.create_connection(address) for _ in range(monitor.MAX_CALLERS)]
    try:
        with socket.create_connection(address, timeout=5) as one_more:
            assert one_more.recv(1) == b""  # hung up on at once
    finally:
        for dawdler in dawdlers:
            dawdler.close()

    def answers() -> bool:
        try:
            return get(address, "/metrics").status_code == 200
        except httpx.HTTPError:
            return False

    wait_for(answers, "places are free again")
