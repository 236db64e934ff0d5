"""The HTTP server in a thread of its own, as in production on uvloop, and clients that write bytes to a socket."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Receive, Scope, Send

from services.machine.listen import listen
from services.security.https import Https
from services.shim.http.limits import HttpLimits
from services.shim.http.server import HttpServer

DEADLINE = 20.0
QUICK = HttpLimits(header_timeout=0.5, body_timeout=0.5, write_timeout=0.5, timeout_keep_alive=0.5)
PATIENT = HttpLimits(header_timeout=60.0, body_timeout=60.0, write_timeout=60.0, timeout_keep_alive=60.0)
HOST = "Host: test\r\n"
LARGE = b"x" * 1_000_000


@dataclass
class App:
    """An ASGI application: /echo answers with the body, /hold waits for the client's hang-up, /stream sends until the
    client hangs up, /large answers with LARGE, any other path answers with itself."""

    num_running: int = 0
    num_hung_up: int = 0
    paths: list[str] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.scopes.append(scope)
        self.num_running += 1
        try:
            await self._answer(scope["path"], receive, send)
        finally:
            self.num_running -= 1

    async def _answer(self, path: str, receive: Receive, send: Send) -> None:
        if path == "/hold":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.num_hung_up += 1
        elif path == "/stream":
            await self._stream(receive, send)
        elif path == "/raise":
            raise ValueError("a bug")
        else:
            body = {"/large": LARGE}.get(path, path.encode()) if path != "/echo" else await read_body(receive)
            if body is None:
                self.num_hung_up += 1
                return
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
            )
            await send({"type": "http.response.body", "body": body})

    async def _stream(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(receive_hang_up(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.num_hung_up += 1


async def read_body(receive: Receive) -> bytes | None:
    """Returns the body; None if the client hangs up before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


async def receive_hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass
class Running:
    """A server that runs. `stalls`: the longest time in which its event loop answered nothing, in seconds."""

    app: App
    port: int
    server: HttpServer
    registry: CollectorRegistry

    def connect(self, **kwargs: Any) -> "Client":
        return Client(socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE), **kwargs)

    def rejections(self, reason: str) -> float:
        return self.registry.get_sample_value("tandem:http_rejections_total", {"reason": reason}) or 0.0

    @property
    def num_open(self) -> int:
        return len(self.server.server_state.connections)


@contextlib.contextmanager
def running(
    limits: HttpLimits = PATIENT, *, https: Https | None = None, refresh: bool = False, app: Any = None
) -> Iterator[Running]:
    registry, app = CollectorRegistry(), app or App()
    rejections = Counter("tandem:http_rejections", "refusals", ("reason",), registry=registry)
    server = HttpServer(app, limits, rejections, https, refresh=refresh)
    listener = listen("127.0.0.1", 0)
    found = Running(app, listener.getsockname()[1], server, registry)
    thread = threading.Thread(target=lambda: uvloop.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        wait_for(lambda: server.started, "it listens")
        yield found
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE} s"
        threading.Event().wait(0.005)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's format. Asserts its shape."""
        content = json.loads(self.body)
        assert content.keys() == {"error"} and content["error"].keys() == {"message", "type", "param", "code"}
        return dict(content["error"])


class Client:
    """A connection. Reads responses one after the other, byte by byte where it must."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = connection.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._reader.close()
        self.socket.close()

    def send(self, *texts: str | bytes) -> "Client":
        self.socket.sendall(b"".join(text.encode() if isinstance(text, str) else text for text in texts))
        return self

    def get(self, path: str, headers: str = "") -> "Client":
        return self.send(f"GET {path} HTTP/1.1\r\n{HOST}{headers}\r\n")

    def post(self, path: str, body: bytes, headers: str = "") -> "Client":
        return self.send(f"POST {path} HTTP/1.1\r\n{HOST}Content-Length: {len(body)}\r\n{headers}\r\n", body)

    def head(self) -> tuple[int, dict[str, str]]:
        """Reads status and headers, with lower-case names."""
        line = self._reader.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers = {}
        while (header := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode().partition(": ")
            headers[name] = value.rstrip()
        return int(line.split()[1]), headers

    def answer(self) -> Answer:
        status, headers = self.head()
        if "content-length" in headers:
            return Answer(status, headers, self._reader.read(int(headers["content-length"])))
        return Answer(status, headers, self._chunks() if "transfer-encoding" in headers else self._reader.read())

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self._reader.readline(), 16):
            parts.append(self._reader.read(size))
            assert self._reader.readline() == b"\r\n"
        assert self._reader.readline() == b"\r\n"
        return b"".join(parts)

    def closed(self) -> bool:
        """Waits until the server closes the connection; False if it sends something before."""
        try:
            return self._reader.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True
