"""The TLS handshake of a new connection. Behind it, a HttpProtocol takes the connection over.

The connection counts from its start, so that clients that never finish a handshake cannot use up the open files.
"""

import asyncio

from services.security.https import Https
from services.shim.http.connections import NEVER
from services.shim.http.protocol import HttpProtocol, Shared

SHUTDOWN_SECONDS = 2.0  # for the end of TLS, once all is sent


class TlsProtocol(asyncio.Protocol):
    """A connection until its handshake is complete; the handshake's deadline is header_timeout."""

    def __init__(self, shared: Shared, https: Https) -> None:
        self._shared = shared
        self._https = https
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self._handshake: asyncio.Task[None] | None = None  # kept: the loop itself holds tasks weakly
        self.deadline = NEVER  # the handshake has its own

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of streams only
        self._transport = transport
        connections = self._shared.connections
        if connections.opened(self) or connections.turned_away(self):
            transport.pause_reading()  # until there is a reader of TLS
            self._handshake = self._shared.loop.create_task(self._shake_hands())
        else:
            transport.abort()

    def evict(self) -> None:
        self._shared.connections.refused("max_connections", "a connection in its TLS handshake made room")
        self._transport.abort()

    def shutdown(self) -> None:
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Is never called: the deadline is NEVER."""

    async def _shake_hands(self) -> None:
        shared, early = self._shared, _Early()
        try:
            tls = await shared.loop.start_tls(
                self._transport,
                early,
                self._https.context,
                server_side=True,
                ssl_handshake_timeout=shared.connections.limits.header_timeout,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # SSLError, the client's hang-up and the timeout as well
            shared.connections.closed(self)
            shared.connections.refused("tls_handshake", f"a TLS handshake failed: {type(error).__name__}")
            self._transport.abort()
            return
        shared.connections.closed(self)
        if tls is not None:
            early.hand_over(tls, HttpProtocol(shared, self._transport))


class _Early(asyncio.Protocol):
    """Keeps what a client sends between the end of the handshake and the hand-over."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lost = False

    def data_received(self, data: bytes) -> None:
        self._data += data

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        if self._lost:
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._data:
            protocol.data_received(bytes(self._data))
