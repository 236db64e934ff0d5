"""Accepts connections with TLS. Each counts from its start: clients that never finish a handshake use no more open
files than others. Behind the handshake, a HttpProtocol takes the connection over.
"""

import asyncio
import logging
import socket

from services.security.https import Https
from services.shim.http.connections import NEVER
from services.shim.http.protocol import HttpProtocol, Shared

log = logging.getLogger(__name__)
SHUTDOWN_SECONDS = 2.0  # for the end of TLS, once all is sent
RETRY_SECONDS = 1.0  # after which it accepts again if the system refused


class TlsListener:
    """Accepts on `listener` until `close`. It stands where uvicorn has an asyncio.Server."""

    def __init__(self, shared: Shared, https: Https, listener: socket.socket) -> None:
        self._shared = shared
        self._https = https
        self._listener = listener
        self._retry: asyncio.TimerHandle | None = None
        self._accept_again()

    def close(self) -> None:
        self._shared.loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()

    async def wait_closed(self) -> None:
        """Returns at once: the connections are the server's."""

    def _accept_again(self) -> None:
        self._shared.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no open files or no memory are left
            log.error("a connection cannot be accepted, it is tried again in %.0f s: %s", RETRY_SECONDS, error)
            self.close()
            self._retry = self._shared.loop.call_later(RETRY_SECONDS, self._accept_again)
            return
        accepted.setblocking(False)
        handshake = Handshake()
        connections = self._shared.connections
        if connections.opened(handshake) or connections.turned_away(handshake):
            handshake.task = self._shared.loop.create_task(self._shake_hands(accepted, handshake))
        else:
            accepted.close()

    async def _shake_hands(self, accepted: socket.socket, handshake: "Handshake") -> None:
        connections = self._shared.connections
        try:
            await self._shared.loop.connect_accepted_socket(
                lambda: HttpProtocol(self._shared, handshake),
                accepted,
                ssl=self._https.context,
                ssl_handshake_timeout=connections.limits.header_timeout,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:  # SSLError, a hang-up and the timeout as well
            connections.refused("tls_handshake", f"a TLS handshake failed: {type(error).__name__}")
        finally:
            connections.closed(handshake)


class Handshake:
    """A connection until its handshake is complete."""

    def __init__(self) -> None:
        self.deadline = NEVER  # the handshake has its own
        self.task: asyncio.Task[None] | None = None

    def evict(self) -> None:
        """Ends the handshake, which closes the connection."""
        if self.task is not None:
            self.task.cancel()

    def shutdown(self) -> None:
        self.evict()

    def expire(self, now: float) -> None:
        """Is never called: the deadline is NEVER."""
