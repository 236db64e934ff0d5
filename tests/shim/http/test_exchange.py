"""Requests and responses as an ASGI application and its client see them."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tests.shim.http.raw import HOST, Running, read_body, running, wait_for


class Scripted:
    """Sends the messages of `script`; reads the body first if `reads`."""

    def __init__(self) -> None:
        self.script: list[dict[str, Any]] = []
        self.reads = False
        self.body: bytes | None = None
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        if self.reads:
            self.body = await read_body(receive)
        for message in self.script:
            await send(message)


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, more_body: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(app=Scripted()) as server:
        yield server


@pytest.fixture
def script(server: Running) -> Iterator[Scripted]:
    app: Any = server.app
    app.script, app.reads, app.body = [], False, None
    yield app


def test_a_response_without_a_length_comes_in_chunks(server: Running, script: Scripted) -> None:
    script.script = [start(), part(b"a", True), part(b"", True), part(b"bc")]
    with server.connect() as client:
        answer = client.get("/").answer()
        assert (answer.headers["transfer-encoding"], answer.body) == ("chunked", b"abc")
        assert client.get("/").answer().body == b"abc", "the connection stays open"


def test_http_1_0_gets_no_chunks(server: Running, script: Scripted) -> None:
    """RFC 9112, section 7: "A server MUST NOT send a response containing Transfer-Encoding" to HTTP/1.0."""
    script.script = [start(), part(b"a", True), part(b"bc")]
    with server.connect() as client:
        answer = client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer()
        assert "transfer-encoding" not in answer.headers and answer.headers["connection"] == "close"
        assert answer.body == b"abc", "its end is that of the connection"


def test_head_and_statuses_without_content(server: Running, script: Scripted) -> None:
    script.script = [start(200, (b"content-length", b"3")), part(b"abc")]
    with server.connect() as client:
        client.send(f"HEAD / HTTP/1.1\r\n{HOST}\r\n")
        assert client.head()[1]["content-length"] == "3"
        script.script = [start(204), part(b"")]
        status, headers = client.get("/").head()
        assert status == 204 and "transfer-encoding" not in headers
        script.script = [start(200), part(b"x")]
        assert client.get("/").answer().body == b"x", "nothing was sent in between"


def test_continue_is_sent_once_the_body_is_wanted(server: Running, script: Scripted) -> None:
    script.reads, script.script = True, [start(), part(b"ok")]
    with server.connect() as client:
        client.send(f"POST / HTTP/1.1\r\n{HOST}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert client.head() == (100, {})
        assert client.send("hi").answer().body == b"ok" and script.body == b"hi"


def test_without_continue_the_connection_is_closed(server: Running, script: Scripted) -> None:
    """The client may leave out the body: where its next request begins is unknown."""
    script.script = [start(200, (b"content-length", b"0")), part(b"")]
    with server.connect() as client:
        client.send(f"POST / HTTP/1.1\r\n{HOST}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert client.answer().headers["connection"] == "close"
        assert client.closed()


def test_the_scope_has_the_addresses(server: Running, script: Scripted) -> None:
    script.script = [start(), part(b"")]
    with server.connect() as client:
        own = client.socket.getsockname()
        client.get("/").answer()
        assert script.scope["client"] == own and script.scope["server"] == client.socket.getpeername()
        assert (script.scope["scheme"], script.scope["root_path"]) == ("http", "")


@pytest.mark.parametrize(
    "script_",
    [
        [],
        [part(b"first")],
        [start(200, (b"x-a", b"b\r\nc: d"))],
        [start(200, (b"x a", b"b"))],
    ],
)
def test_an_application_that_sends_no_response_is_a_500(
    server: Running, script: Scripted, script_: list[dict[str, Any]]
) -> None:
    script.script = script_
    with server.connect() as client:
        answer = client.get("/").answer()
        assert answer.status == 500 and answer.error["type"] == "server_error"
        assert client.closed()


@pytest.mark.parametrize(
    "script_",
    [
        [start(200, (b"content-length", b"3")), part(b"ab")],
        [start(200, (b"content-length", b"3")), part(b"ab", True)],
        [start(200, (b"content-length", b"1")), part(b"ab")],
        [start(), part(b"ab", True)],
    ],
)
def test_a_response_that_is_not_complete_ends_the_connection(
    server: Running, script: Scripted, script_: list[dict[str, Any]]
) -> None:
    script.script = script_
    with server.connect() as client:
        client.get("/")
        with client.socket.makefile("rb") as reader:
            assert not reader.read().endswith((b"abc", b"0\r\n\r\n"))


def test_what_is_sent_behind_a_hang_up_is_dropped(server: Running, script: Scripted, caplog: Any) -> None:
    script.reads, script.script = True, [start(), part(b"a" * 100_000, True), part(b"b")]
    with server.connect() as client:
        client.send(f"POST / HTTP/1.1\r\n{HOST}Content-Length: 2\r\n\r\na")
        client.socket.shutdown(socket.SHUT_WR)
    wait_for(lambda: not server.server.server_state.tasks, "it ends")
    assert script.body is None and not caplog.records
