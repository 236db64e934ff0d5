"""The number of connections: which one makes room, and what one above the limit is told."""

import dataclasses
import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from services.shim.http.connections import MAX_TURNED_AWAY, Connections
from services.shim.http.limits import HttpLimits
from tests.shim.http.raw import HOST, PATIENT, Client, Running, running, wait_for

LIMIT = 8


@pytest.fixture
def server() -> Iterator[Running]:
    with running(dataclasses.replace(PATIENT, max_connections=LIMIT)) as server:
        yield server


def busy(server: Running, count: int) -> list[Client]:
    clients = [server.connect().get("/hold") for _ in range(count)]
    wait_for(lambda: server.app.num_running == count, "all run")
    return clients


def close(clients: list[Client]) -> None:
    for client in clients:
        client.close()


def test_the_longest_idle_connection_makes_room(server: Running) -> None:
    idle = [server.connect() for _ in range(LIMIT)]
    for client in [*idle[1:], idle[0]]:
        assert client.get("/a").answer().status == 200
    with server.connect() as health:
        assert health.get("/health").answer().status == 200
        assert idle[1].closed(), "it has waited longest"
        assert idle[0].get("/b").answer().status == 200
    assert server.rejections("max_connections") == 0
    close(idle)


def test_a_connection_whose_body_no_longer_matters_makes_room(server: Running) -> None:
    """Its answer was sent before its body came: nobody waits for the rest of it."""
    held = [server.connect() for _ in range(LIMIT)]
    for client in held:
        client.send(f"POST /early HTTP/1.1\r\n{HOST}Content-Length: 60000\r\n\r\n")
        assert client.answer().body == b"/early"
    with server.connect() as health:
        assert health.get("/health").answer().status == 200
        assert held[0].closed()
        assert held[1].send("x" * 60_000).get("/next").answer().body == b"/next"
    close(held)


@pytest.mark.parametrize("text", ["", "GET / HT"])
def test_connections_that_never_send_a_request_cannot_lock_out_others(server: Running, text: str) -> None:
    silent = [server.connect().send(text) for _ in range(5 * LIMIT)]
    with server.connect() as health:
        assert health.get("/health").answer().status == 200
    assert server.num_open <= LIMIT
    assert server.rejections("max_connections") >= (4 * LIMIT if text else 0)
    close(silent)


def test_one_above_the_limit_is_told_so_at_once(server: Running) -> None:
    clients = busy(server, LIMIT)
    with server.connect() as other:
        answer = other.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (
            answer.error["message"]
            == f"{LIMIT} connections are open, the limit set by --max-connections; try again later"
        )
        assert answer.error["type"] == "server_error"
        assert other.closed()
    assert server.rejections("max_connections") == 1
    close(clients)
    wait_for(lambda: server.app.num_running == 0, "all end")
    with server.connect() as again:
        assert again.get("/a").answer().status == 200


def test_those_that_are_told_so_are_bounded(server: Running) -> None:
    clients = busy(server, LIMIT)
    others = [server.connect() for _ in range(3 * MAX_TURNED_AWAY)]
    wait_for(lambda: server.rejections("max_connections") >= MAX_TURNED_AWAY, "some are told")
    assert all(other.head()[0] == 503 for other in others[:MAX_TURNED_AWAY])
    assert any(other.closed() for other in others[MAX_TURNED_AWAY:])
    assert server.num_open == LIMIT
    close([*clients, *others])


class Fake:
    def __init__(self, deadline: float = float("inf")) -> None:
        self.deadline = deadline
        self.log: list[str] = []

    def expire(self, now: float) -> None:
        self.log.append("expired")

    def evict(self) -> None:
        self.log.append("evicted")


def connections(limit: int) -> Connections:
    rejections = Counter("rejections", "refusals", ("reason",), registry=CollectorRegistry())
    return Connections(HttpLimits(max_connections=limit), rejections, set())


def test_a_sweep_expires_what_is_late() -> None:
    some, early, late = connections(8), Fake(1.0), Fake(2.0)
    for one in (early, late):
        assert some.opened(one)
    some.sweep(1.5)
    assert (early.log, late.log) == (["expired"], [])


def test_a_connection_at_work_does_not_make_room() -> None:
    some, working, waiting = connections(2), Fake(), Fake()
    assert some.opened(working) and some.opened(waiting)
    some.works(working)
    assert some.opened(Fake()) and (working.log, waiting.log) == ([], ["evicted"])
    some.waits(waiting)
    third = Fake()
    assert some.opened(third) and third.log == [], "a closed connection waits no more"


def test_refusals_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    some = connections(2)
    for now in (10.0, 10.4, 10.8, 11.2):
        some.refused("malformed", "first")
        some.refused("header_bytes", "last")
        some.sweep(now)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "the HTTP server refused header_bytes 1, malformed 1; the last one: last",
        "the HTTP server refused header_bytes 3, malformed 3; the last one: last",
    ]
    assert re.search("last", lines[0])
