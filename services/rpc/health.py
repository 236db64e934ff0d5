"""gRPC's standard health service (grpc.health.v1). https://grpc.io/docs/guides/health-checking/

grpcio-health-checking has a servicer of its own. In its asyncio form (1.76 to 1.82) a watcher that leaves takes the
condition of the others along, which then get no change, and one that does not read holds the lock that a change
needs. https://github.com/grpc/grpc/pull/43403
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """One status for all `services` (full names; "" is the whole server).

    `is_serving` is asked at each check, at each `changed()`, and, for watchers, every `recheck_s` seconds if given.
    """

    def __init__(
        self, services: Iterable[str], is_serving: Callable[[], bool], *, recheck_s: float | None = None
    ) -> None:
        self._services = frozenset(services)
        self._is_serving = is_serving
        self._recheck_s = recheck_s
        self._changed = asyncio.Event()  # of the next change: each change gets a new one
        self._stopping = False

    def changed(self) -> None:
        """Lets the watchers ask `is_serving` again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """From now on the status is NOT_SERVING; watchers get it as their last."""
        self._stopping = True
        self.changed()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Sends the status, then each change of it, until the call is cancelled or the server stops."""
        sent = None
        while True:
            changed, last = self._changed, self._stopping
            if (status := self._status(request.service)) != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            if last:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._recheck_s):
                    await changed.wait()

    def _status(self, service: str) -> int:
        status = health_pb2.HealthCheckResponse
        if service not in self._services:
            return int(status.SERVICE_UNKNOWN)
        return int(status.SERVING if self._is_serving() and not self._stopping else status.NOT_SERVING)
