"""One request and its response: the two ends that an ASGI application has of it, and how the response is written.

Knows its connection only as a writer. https://asgi.readthedocs.io/en/latest/specs/www.html
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

from services.shim.http.framing import Framing
from services.shim.http.head import Head
from services.shim.http.refusal import SERVER_ERROR, Headers, phrase

log = logging.getLogger(__name__)
MAX_UNREAD_BYTES = 64 * 1024  # of a body, above which the connection is not read
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOT_IN_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_NOT_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_STATUS_LINES = {status: b"HTTP/1.1 %d %s\r\n" % (status, phrase(status)) for status in range(100, 600)}
_DISCONNECT: Message = {"type": "http.disconnect"}
_FAILED = b'{"error":{"message":"internal server error","type":"server_error","param":null,"code":null}}'


class Writer(Protocol):
    """What an exchange needs of its connection."""

    writable: asyncio.Event

    @property
    def write(self) -> Callable[[bytes], None]: ...

    def default_headers(self) -> Headers: ...

    def resume_reading(self) -> None:
        """The application has taken what was received of the body."""

    def may_stay_open(self) -> bool:
        """Returns whether the connection can serve another request behind the body of this one."""

    def finished(self, exchange: "Exchange") -> None:
        """The response is complete."""

    def failed(self) -> None:
        """The response cannot be completed: the connection has to be closed."""


class Exchange:
    """A request in progress. `keep_alive`: the connection stays open behind the response."""

    def __init__(self, head: Head, writer: Writer, framing: Framing | None) -> None:
        self._writer = writer
        self._write = writer.write
        self._is_head = head.method == "HEAD"
        self._http_1_0 = head.version == "1.0"
        self._expects_continue = head.expects_continue
        self.keep_alive = head.keep_alive
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._received = asyncio.Event()
        self._parts: list[bytes] = []
        self.num_unread = 0
        self._body_complete = framing is None or framing.complete
        if self._body_complete:
            self._received.set()
        self._chunked = False
        self._held = b""  # the head of a response whose length is known, until its content
        self._length_left: int | None = 0  # of the response's content; None: not announced

    def feed(self, content: bytes, complete: bool) -> None:
        """Hands the application more of the body."""
        if content:
            self._parts.append(content)
            self.num_unread += len(content)
        self._body_complete = complete
        self._received.set()

    def disconnect(self) -> None:
        """Tells the application that the client is gone; what it sends from now on is dropped."""
        self.disconnected = True
        self._received.set()

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Calls the application. Answers 500 if it raises or sends no response, closes if it stops within one.

        `scope` is not kept: middleware puts `send` into it, which is of this exchange.
        """
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            log.exception("exception in the application")
        if self.response_complete or self.disconnected:
            return
        if self.response_started:
            self._writer.failed()
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_FAILED))]
        self.keep_alive = False
        await self._send({"type": "http.response.start", "status": SERVER_ERROR, "headers": headers})
        await self._send({"type": "http.response.body", "body": _FAILED})

    async def _receive(self) -> Message:
        if self._expects_continue and not self.disconnected:
            self._write(CONTINUE)
            self._expects_continue = False
        if not self.disconnected and not self.response_complete:
            self._writer.resume_reading()
            await self._received.wait()
            self._received.clear()
        if self.disconnected or self.response_complete:
            return _DISCONNECT
        parts, self._parts, self.num_unread = self._parts, [], 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": not self._body_complete}

    async def _send(self, message: Message) -> None:
        writer = self._writer
        if not writer.writable.is_set() and not self.disconnected:
            await writer.writable.wait()
        if self.disconnected:
            return
        if not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"the application sent {message['type']} before http.response.start")
            head = self._response_head(message["status"], message.get("headers", ()))
            self.response_started = True
            self._expects_continue = False
            if self._length_left is None:
                self._write(head)
            else:  # the content is there at once: one write sends both
                self._held = head
        elif self.response_complete:
            raise RuntimeError(f"the application sent {message['type']} behind a complete response")
        else:
            self._send_body(message.get("body", b""), message.get("more_body", False))

    def _response_head(self, status: int, headers: Headers) -> bytes:
        lines = [_STATUS_LINES[status]]
        length = chunked = None
        closes = False
        for name, value in (*self._writer.default_headers(), *headers):
            if _NOT_IN_NAME.search(name) or _NOT_IN_VALUE.search(value):
                raise RuntimeError("the application sent a header with a character that HTTP does not allow")
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                closes = b"close" in value.lower()
            lines += (name, b": ", value, b"\r\n")
        bodiless = self._is_head or status < 200 or status in (204, 304)
        if length is None and not bodiless:
            chunked = not self._http_1_0
            if self._http_1_0:  # has no chunks: the end of the connection ends the content (RFC 9112, section 6.3)
                self.keep_alive = False
        # A client that was not asked for its body may leave it out: where its next request begins is unknown.
        if closes or self._expects_continue or not self._writer.may_stay_open():
            self.keep_alive = False
        if chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        self._chunked = bool(chunked)
        self._length_left = 0 if bodiless else length
        lines.append(b"\r\n")
        return b"".join(lines)

    def _send_body(self, body: bytes, more_body: bool) -> None:
        if self._chunked:
            framed = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
            if not more_body:
                framed.append(b"0\r\n\r\n")
            if framed:
                self._write(b"".join(framed))
        else:
            if self._is_head:
                body = b""
            if self._length_left is not None:
                self._length_left -= len(body)
                if self._length_left < 0:
                    raise RuntimeError("the response is longer than its Content-Length")
            self._write(self._held + body)
            self._held = b""
        if not more_body:
            if self._length_left:
                raise RuntimeError("the response is shorter than its Content-Length")
            self.response_complete = True
            self._received.set()
            self._writer.finished(self)
