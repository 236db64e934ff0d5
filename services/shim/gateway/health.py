"""The gateway's health: in vLLM's own RPC, and in gRPC's standard service (grpc.health.v1)."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.shim.generations import Generations

ENGINE_SERVICE = "vllm.grpc.engine.VllmEngine"
SERVICES = ("", ENGINE_SERVICE)
WATCH_SECONDS = 0.5  # between two looks at the status, for a watcher


def is_healthy(generations: Generations) -> bool:
    """Returns whether requests are served: a tokenizer is connected, or open requests wait for its restart.

    A gateway takes a server out after three failures. Requests that are being resumed must not look like one.
    """
    client = generations.client
    return client.dispatcher.connected or (bool(generations.open) and client.resuming)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1 for the whole server and for VllmEngine. https://grpc.io/docs/guides/health-checking/"""

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self._healthy = healthy
        self._stopping = False

    def stop(self) -> None:
        """From now on the status is NOT_SERVING."""
        self._stopping = True

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Sends the status, then each change of it, until the call is cancelled or the server stops."""
        sent = None
        while not self._stopping:
            status = self._status(request.service)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await asyncio.sleep(WATCH_SECONDS)

    def _status(self, service: str) -> int:
        status = health_pb2.HealthCheckResponse
        if service not in SERVICES:
            return int(status.SERVICE_UNKNOWN)
        return int(status.SERVING if self._healthy() and not self._stopping else status.NOT_SERVING)
