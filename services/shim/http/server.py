"""The HTTP server: uvicorn's start, ticks and shutdown, with connections of our own (protocol.py)."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from prometheus_client import Counter
from starlette.types import ASGIApp

from services.machine import authority
from services.machine.listen import BACKLOG
from services.security.https import Https
from services.shim.http.connections import Connections
from services.shim.http.limits import HttpLimits
from services.shim.http.protocol import HttpProtocol, Shared
from services.shim.http.tls import TlsListener

SHUTDOWN_SECONDS = 1
SWEEP_TICKS, REFRESH_TICKS = 5, 20  # of 0.1 s


class HttpServer(uvicorn.Server):
    """Serves `app`. `rejections`: counts refusals by the label `reason`. `refresh`: the TLS files may change.

    Has no signal handlers: services/process/shell.py handles signals.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        rejections: Counter,
        https: Https | None = None,
        *,
        refresh: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",  # no route has websockets
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._connections = Connections(limits, rejections, self.server_state.connections)  # type: ignore[arg-type]
        self._https = https
        self._refresh = refresh and https is not None
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        shared = Shared(self.config.loaded_app, self._connections, self.server_state, loop)
        self.servers = []
        for one in sockets or []:
            if self._https is not None:
                self.servers.append(TlsListener(shared, self._https, one))  # type: ignore[arg-type]  # a part of it
                continue
            listen = loop.create_unix_server if one.family == socket.AF_UNIX else loop.create_server
            self.servers.append(await listen(lambda: HttpProtocol(shared), sock=one, backlog=BACKLOG))
        self.started = True
        self.is_listening.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            self._connections.sweep(asyncio.get_running_loop().time())
        if self._refresh and self._https is not None and counter % REFRESH_TICKS == 0:
            await asyncio.to_thread(self._https.refresh)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._connections.end()
        await asyncio.sleep(0)  # the loop closes them

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def url_of(listener: socket.socket, *, tls: bool) -> str:
    """Returns the URL of a listening socket, as http://127.0.0.1:8000; of a Unix socket unix:PATH."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"{'https' if tls else 'http'}://{authority(*name[:2])}"
