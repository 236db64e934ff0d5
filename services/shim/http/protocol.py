"""One connection of a client, from its bytes to requests, one after the other.

A request begins where the one before it ends, and is looked at once that one has its response (RFC 9112, section
9.3.2). Heads are collected before they are parsed, so that their size is known. What the connection may take, and how
long, is in limits.py; its deadline is looked at by the sweep over all connections (connections.py).
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from services.machine import unacknowledged_bytes
from services.shim.http.connections import NEVER, Connection, Connections
from services.shim.http.exchange import MAX_UNREAD_BYTES, Exchange
from services.shim.http.framing import Framing, take
from services.shim.http.head import END, Head
from services.shim.http.refusal import (
    Headers,
    Refusal,
    Refused,
    body_timeout,
    header_bytes,
    header_timeout,
    max_connections,
)

MIN_BODY_BYTES = 16 * 1024  # that a body must bring within body_timeout, unless it ends
LINGER_SECONDS = 2.0  # in which a refused client may read its answer before the connection is closed


@dataclass(frozen=True)
class Shared:
    """What all connections of a server have in common. `state`: uvicorn's, with its tasks and default headers."""

    app: ASGIApp
    connections: Connections
    state: ServerState
    loop: asyncio.AbstractEventLoop


class HttpProtocol(asyncio.Protocol):
    """`handshake`: what counted as this connection before its TLS was there; None: there is no TLS."""

    def __init__(self, shared: Shared, handshake: Connection | None = None) -> None:
        self._shared = shared
        self._connections = shared.connections
        self._limits = shared.connections.limits
        self._loop = shared.loop
        self._handshake = handshake
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self._addresses: dict[str, Any] = {}  # of the ASGI scope
        self.deadline = NEVER
        self.writable = asyncio.Event()
        self.writable.set()
        self._write_deadline = NEVER  # while nothing more can be written
        self._reading_paused = False
        self._discarding = False  # what is received no longer matters
        self._closing = False
        self._buffer = bytearray()  # received and not yet taken by head or body
        self._scanned = 0  # bytes of the buffer that have no end of a head
        self._skipped = 0  # bytes of empty lines before the head
        self._exchange: Exchange | None = None  # the request whose response is not complete
        self._framing: Framing | None = None  # of the body that is not complete
        self._num_received = 0  # bytes of the body since the last deadline was set
        self._unsent = sys.maxsize  # bytes that the client had not taken when the last deadline was set

    # What the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of streams only
        self._transport = transport
        self._addresses = {
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
            "scheme": "http" if self._handshake is None else "https",
        }
        self.deadline = self._loop.time() + self._limits.header_timeout
        if self._handshake is not None:
            self._connections.closed(self._handshake)
        if self._connections.opened(self):
            return
        if self._connections.turned_away(self):
            self._refuse(max_connections(self._limits.max_connections))
        else:
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.closed(self)
        self._disconnect()
        self._buffer.clear()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        self._buffer += data
        self._advance()

    def pause_writing(self) -> None:
        self.writable.clear()
        self._unsent = self._num_not_taken()
        self._write_deadline = self._loop.time() + self._limits.write_timeout
        self.deadline = min(self.deadline, self._write_deadline)

    def resume_writing(self) -> None:
        self.writable.set()
        self._write_deadline = NEVER

    # What an exchange calls

    @property
    def write(self) -> Callable[[bytes], None]:
        return self._transport.write

    def default_headers(self) -> Headers:
        return self._shared.state.default_headers

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def may_stay_open(self) -> bool:
        left = 0 if self._framing is None else self._framing.left
        return left is not None and left <= self._limits.max_header_bytes and not self._discarding

    def finished(self, exchange: Exchange) -> None:
        self._exchange = None
        if self._transport.is_closing():
            return
        if exchange.keep_alive:
            self.resume_reading()
            if self._framing is None:
                self._await_request()
            else:  # nothing depends on the rest of the body: the connection may be closed for a new one
                self._connections.waits(self)
            self._advance()
        elif self._framing is not None or self._discarding:
            self._linger()
        else:
            self._close()

    def failed(self) -> None:
        self._exchange = None
        self._close()

    # What the server and its connections call

    def shutdown(self) -> None:
        """Closes the connection behind the request in progress, at once if there is none."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keep_alive = False

    def evict(self) -> None:
        if self._buffer:
            self._connections.refused("max_connections", "a connection whose headers were incomplete made room")
        self._transport.abort()

    def expire(self, now: float) -> None:
        unsent = self._transport.get_write_buffer_size()
        if now >= self._write_deadline or (self._exchange is None and unsent):
            self._check_writing(now)
        elif self._closing or self._discarding:
            self._transport.abort()
        elif self._framing is not None:
            self._check_body(now)
        elif self._exchange is not None:
            self.deadline = self._write_deadline
        elif self._buffer or self._skipped:
            self._refuse(header_timeout(self._limits.header_timeout))
        else:
            self._close()

    def _check_writing(self, now: float) -> None:
        """Cuts the connection if the client has taken nothing of what was sent since the last deadline was set."""
        not_taken = self._num_not_taken()
        if not_taken < self._unsent:
            self._unsent = not_taken
            self.deadline = now + self._limits.write_timeout
            if not self.writable.is_set():
                self._write_deadline = self.deadline
            return
        seconds = self._limits.write_timeout
        self._connections.refused("write_timeout", f"a client took nothing of its response for {seconds:g} s")
        self._disconnect()
        self._transport.abort()

    def _check_body(self, now: float) -> None:
        if self._num_received < MIN_BODY_BYTES and not self._reading_paused:
            self._refuse(body_timeout(MIN_BODY_BYTES, self._limits.body_timeout))
        else:
            self._num_received = 0
            self.deadline = now + self._limits.body_timeout

    def _num_not_taken(self) -> int:
        """Returns the bytes that were sent and that the client has not taken, as far as the system says."""
        held = unacknowledged_bytes(self._transport.get_extra_info("socket"))
        return self._transport.get_write_buffer_size() + held

    # From bytes to requests

    def _advance(self) -> None:
        """Takes requests from the buffer, as far as they are complete and it is their turn."""
        try:
            while self._buffer and not self._discarding:
                if self._framing is not None:
                    self._take_body(self._framing)
                    if self._framing is not None:
                        return
                elif self._exchange is not None:
                    self._check_pipelined(self._exchange)
                    return
                elif not self._take_head():
                    return
        except Refused as refused:
            self._refuse(refused.refusal)

    def _check_pipelined(self, exchange: Exchange) -> None:
        """Bounds what waits behind a request. It is read, or a hang-up would not be noticed."""
        if len(self._buffer) > self._limits.max_header_bytes:
            exchange.keep_alive = False
            self._discarding = True
            self._buffer.clear()

    def _take_head(self) -> bool:
        """Starts the next request if its head is complete. Returns whether there was one, or an empty line before it.

        Raises Refused.
        """
        buffer = self._buffer
        end = buffer.find(END, self._scanned)
        size = len(buffer) if end < 0 else end + len(END)
        if self._skipped + size > self._limits.max_header_bytes:
            raise Refused(header_bytes(self._limits.max_header_bytes))
        if end < 0:
            if self._scanned == 0 and self._skipped == 0:
                self.deadline = self._loop.time() + self._limits.header_timeout
            self._scanned = max(1, size - len(END) + 1)  # not 0: the head has begun
            return False
        self._scanned = 0
        text = take(buffer, size).lstrip(b"\r\n")
        if text:
            self._skipped = 0
            head = Head(text, self._limits)
            self._start(head, head.scope())
        else:  # empty lines, which a server skips (RFC 9112, section 2.2)
            rest = len(buffer.lstrip(b"\r\n"))
            self._skipped += size + len(buffer) - rest
            del buffer[: len(buffer) - rest]
        return True

    def _start(self, head: Head, scope: dict[str, Any]) -> None:
        self._connections.works(self)
        scope.update(self._addresses)
        framing = head.framing
        self._exchange = exchange = Exchange(head, self, framing)
        if framing is not None and not framing.complete:
            self._framing = framing
            self._num_received = 0
            self.deadline = self._loop.time() + self._limits.body_timeout
        else:
            self.deadline = self._write_deadline
        tasks = self._shared.state.tasks
        task = self._loop.create_task(exchange.run(self._shared.app, scope))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _take_body(self, framing: Framing) -> None:
        """Hands on what the buffer has of the body; drops it if the response is complete. Raises Refused."""
        content = framing.take(self._buffer)
        self._num_received += len(content)
        exchange = self._exchange
        if framing.complete:
            self._framing = None
            self.deadline = self._write_deadline
            if exchange is None:
                self._await_request()
        if exchange is not None and (content or framing.complete):
            exchange.feed(content, framing.complete)
        if framing.has_more:
            self._loop.call_soon(self._advance)
        if framing.has_more or (exchange is not None and exchange.num_unread > MAX_UNREAD_BYTES):
            self._pause_reading()
        else:
            self.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _await_request(self) -> None:
        self._connections.waits(self)
        self._unsent = sys.maxsize
        self.deadline = self._loop.time() + self._limits.timeout_keep_alive

    # The end

    def _refuse(self, refusal: Refusal) -> None:
        """Answers instead of the application, and closes the connection. Without an answer if one has begun."""
        self._connections.refused(refusal.reason, refusal.message)
        answered = self._exchange is not None and self._exchange.response_started
        self._disconnect()
        if answered:
            self._close()
        else:
            self._transport.write(refusal.response(self.default_headers()))
            self._linger()

    def _disconnect(self) -> None:
        """Tells the application, if it works on a request, that there is nobody to answer."""
        if self._exchange is not None:
            self._exchange.disconnect()
            self._exchange = None
        self._framing = None
        self.writable.set()

    def _linger(self) -> None:
        """Ends what is sent, and reads on for a while: a connection closed with unread bytes is reset, and the client
        may lose the answer (RFC 9112, section 9.6). TLS has its own end."""
        self._discarding = True
        self._buffer.clear()
        self.resume_reading()
        if not self._transport.can_write_eof():
            self._close()
            return
        self._connections.waits(self)  # it may be closed for a new one
        self._unsent = sys.maxsize
        self._transport.write_eof()
        self.deadline = self._loop.time() + LINGER_SECONDS

    def _close(self) -> None:
        """Closes the connection once the client has taken what was sent, or the write deadline passes."""
        self._connections.works(self)
        self._closing = True
        self._unsent = sys.maxsize
        self.deadline = self._loop.time() + self._limits.write_timeout
        self._transport.close()


def _address(name: Any) -> tuple[str, int] | tuple[str, None] | None:
    """Returns an address as the ASGI scope has it: host and port, or the path of a Unix socket; None: unknown."""
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return (name, None) if name and isinstance(name, str) else None
