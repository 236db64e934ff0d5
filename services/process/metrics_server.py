"""The metrics server of a process: GET /metrics for Prometheus, GET /live, /ready and /health for orchestrators.

Runs in threads, so that a busy loop or an event loop never waits for a scrape. At MAX_CONNECTIONS a new connection
replaces the oldest one, so slow clients cannot make the others unreachable.
Text format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import contextlib
import hmac
import http.server
import logging
import select
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest

from services.machine import authority
from services.machine.listen import listen
from services.options.common import MetricsOptions
from services.options.setting import split_address
from services.security.metrics_token import token_to_ask_for
from services.security.secret import ClusterSecret

log = logging.getLogger(__name__)
MAX_CONNECTIONS = 16
ENGINE = "0"  # value of vLLM's label `engine`: there is one engine


def new_registry() -> CollectorRegistry:
    """Returns a registry with this process's CPU time, memory and open files. Turns off *_created series in all."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


@dataclass(frozen=True)
class HealthChecks:
    """Called in server threads; a route answers 200 if its function returns true, else 503."""

    is_live: Callable[[], bool]  # this process makes progress, whatever the others do
    is_ready: Callable[[], bool]  # a token could be made now, if this process makes progress
    is_healthy: Callable[[], bool]  # new requests are accepted, also while a process behind this one restarts


class MetricsServer:
    """Serves while it is entered as a context manager."""

    def __init__(
        self, front: socket.socket, registry: CollectorRegistry, checks: HealthChecks, token: str | None = None
    ) -> None:
        """`front`: a listening socket, closed at exit. `token`: the bearer token that /metrics requires; None: none."""
        self._server = _Server(front, registry, checks, token)
        self._thread = threading.Thread(target=self._server.serve_until_stopped, name="metrics-server", daemon=True)

    def __enter__(self) -> "MetricsServer":
        self._thread.start()
        log.info("metrics on http://%s/metrics", authority(*self._server.socket.getsockname()[:2]))
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop()
        self._thread.join()
        self._server.server_close()


def open_metrics_server(
    options: MetricsOptions, secret: ClusterSecret | None, registry: CollectorRegistry, checks: HealthChecks
) -> MetricsServer:
    """Returns a metrics server on the socket of --metrics-fd, else on the address of --metrics-listen.

    The server must be entered. Raises Fatal if the address cannot be bound, or if other machines can reach it and
    neither `options` nor `secret` gives a token, or if the token's file cannot be used.
    """
    if options.metrics_fd is not None:
        front = socket.socket(fileno=options.metrics_fd)
    else:
        host, port = split_address(options.metrics_listen) if options.metrics_listen else (None, 0)
        front = listen(host, port)
    return MetricsServer(front, registry, checks, token_to_ask_for(front, options.metrics_token_file, secret))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, front: socket.socket, registry: CollectorRegistry, checks: HealthChecks, token: str | None
    ) -> None:
        super().__init__(front.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = front
        self.registry = registry
        self.checks = {
            "/live": checks.is_live,
            "/ready": lambda: checks.is_live() and checks.is_ready(),
            "/health": checks.is_healthy,
        }
        self.authorization = f"Bearer {token}".encode() if token is not None else None
        self.timeout = 0  # of handle_request
        self._stopped, self._stop = socket.socketpair()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}  # an ordered set, the oldest first

    def serve_until_stopped(self) -> None:
        """Accepts connections until `stop`. Polls nothing: socketserver's own loop wakes up twice a second."""
        while self._stopped not in select.select([self.socket, self._stopped], [], [])[0]:
            self.handle_request()

    def stop(self) -> None:
        self._stop.close()

    def server_close(self) -> None:
        super().server_close()
        self._stopped.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                oldest = next(iter(self._connections))
                del self._connections[oldest]
                with contextlib.suppress(OSError):  # the client has closed it already
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads end of file, and closes it
            self._connections[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs the present exception, unless it is an OSError: a client that disconnects or is too slow raises that."""
        if not isinstance(sys.exception(), OSError):
            log.exception("the metrics server failed to answer a request")


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = 5.0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics" and not self._may_read():
            self._answer(401, "text/plain", b"")
        elif path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        elif path in self.server.checks:
            self._answer(200 if self.server.checks[path]() else 503, "text/plain", b"")
        else:
            self._answer(404, "text/plain", b"")

    do_HEAD = do_GET

    def _may_read(self) -> bool:
        required, given = self.server.authorization, self.headers.get("Authorization", "")
        return required is None or hmac.compare_digest(given.encode("latin-1", "replace"), required)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Logs nothing: scrapes are frequent."""
