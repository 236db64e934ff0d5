"""A proxy before the server that keeps every chat request with its answer, streamed or not, as the server sent it.

Imports only the standard library.
"""

import contextlib
import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
SECONDS = 30.0  # for the end of an answer
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "accept-encoding"}


@dataclass(frozen=True)
class Exchange:
    """A chat request and its answer. `choice` is the answer's first choice in the form of an unstreamed one; None for a
    refusal or a broken answer, which `problem` describes."""

    request: dict[str, Any]
    status: int
    body: str
    choice: dict[str, Any] | None
    problem: str


class MalformedStream(Exception):
    """The events of a stream are not what OpenAI's API sends."""


@dataclass
class Answer:
    status: int = 0
    body: bytes = b""


class Recording:
    """The chats of one recorder, in the order in which they began. Safe for threads."""

    def __init__(self) -> None:
        self._exchanges: list[Exchange | None] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def chat(self, request: dict[str, Any]) -> Iterator[Answer]:
        """Yields what the caller fills in, and keeps it at the end."""
        with self._changed:
            place = len(self._exchanges)
            self._exchanges.append(None)
        answer = Answer()
        try:
            yield answer
        finally:
            with self._changed:
                self._exchanges[place] = exchange(request, answer.status, answer.body.decode())
                self._changed.notify_all()

    def exchanges(self) -> list[Exchange]:
        """Waits for the ends of all chats that began, because a client may be done before them, and returns them.

        Raises TimeoutError after SECONDS.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: None not in self._exchanges, SECONDS):
                raise TimeoutError(f"an answer did not end in {SECONDS:.0f} s")
            return [one for one in self._exchanges if one is not None]


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep their connections

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that closes its connection is no error."""


@contextlib.contextmanager
def recorder(url: str) -> Iterator[tuple[str, Recording]]:
    """Yields a URL that leads to the server at `url`, and what it records."""
    recording = Recording()
    address = urlsplit(url).netloc

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _pass_on(self, address, b"", Answer())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = recording.chat(json.loads(body)) if self.path == CHAT else contextlib.nullcontext(Answer())
            with kept as answer:
                _pass_on(self, address, body, answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", recording
        finally:
            server.shutdown()
            thread.join()


def _pass_on(handler: http.server.BaseHTTPRequestHandler, address: str, body: bytes, answer: Answer) -> None:
    """Sends the request to the server and each part of its answer to the client; fills in `answer`."""
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_BY_HOP}
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:
        connection.request(handler.command, handler.path, body or None, headers)
        response = connection.getresponse()
        answer.status = response.status
        handler.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                handler.send_header(name, value)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        while part := response.read1(65536):
            answer.body += part
            # A client may close the connection at [DONE].
            with contextlib.suppress(ConnectionError):
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
    with contextlib.suppress(ConnectionError):
        handler.wfile.write(b"0\r\n\r\n")


def exchange(request: dict[str, Any], status: int, body: str) -> Exchange:
    if status != 200:
        return Exchange(request, status, body, None, f"{status} {body}")
    try:
        choice = joined(events(body)) if request.get("stream") else json.loads(body)["choices"][0]
    except (ValueError, KeyError, IndexError, MalformedStream) as error:
        return Exchange(request, status, body, None, f"{type(error).__name__}: {error}, in {body}")
    return Exchange(request, status, body, choice, "")


def events(body: str) -> list[dict[str, Any]]:
    """Returns the chunks of a stream. Raises MalformedStream if [DONE] does not end it."""
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    if not data or data.pop() != "[DONE]":
        raise MalformedStream("no [DONE]")
    return [json.loads(one) for one in data]


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the first choice of a stream as an unstreamed one: texts and arguments put together by index.

    Raises MalformedStream for a call that does not begin with id, type and name, for one that has them again, and for
    anything after the finish_reason.
    """
    message: dict[str, Any] = {"role": None, "content": None}
    calls: list[dict[str, Any]] = []
    finish_reason = None
    for choice in (one for chunk in chunks for one in chunk["choices"] if one["index"] == 0):
        if finish_reason is not None:
            raise MalformedStream("a choice goes on after its finish_reason")
        finish_reason = choice["finish_reason"]
        delta = choice["delta"]
        message["role"] = delta.get("role") or message["role"]
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name) is not None:
                message[name] = (message.get(name) or "") + delta[name]
        for part in delta.get("tool_calls") or []:
            _add_call(calls, part)
    if calls:
        message["tool_calls"] = calls
    return {"message": message, "finish_reason": finish_reason}


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    function = part["function"]
    if part["index"] == len(calls):
        if not (part.get("id") and part.get("type") == "function" and function.get("name")):
            raise MalformedStream(f"a call begins with {part}")
        call = {"id": part["id"], "type": part["type"], "function": {"name": function["name"], "arguments": ""}}
        calls.append(call)
    elif part["index"] != len(calls) - 1 or part.get("id") or function.get("name"):
        raise MalformedStream(f"call {len(calls) - 1} goes on with {part}")
    calls[-1]["function"]["arguments"] += function.get("arguments") or ""
