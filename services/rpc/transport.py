"""gRPC channels and servers as tandem sets them: large messages, quick notice of a dead peer, one event loop.

`grpc.keepalive_timeout_ms` alone has no effect in grpcio 1.85; `grpc.http2.ping_timeout_ms` beside it does. Servers
that see no data for long (a long prefill) must not take pings for abuse.
"""

import asyncio
import logging

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.process import to_the_end

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_SHARED = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 3000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CHANNEL = [
    *_SHARED,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]
SERVER_OPTIONS = [
    *_SHARED,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


def open_channel(target: str) -> grpc.aio.Channel:
    """`target` is `unix:/path` or `host:port`."""
    return grpc.aio.insecure_channel(target, options=_CHANNEL)


def _is_no_hang_up(record: logging.LogRecord) -> bool:
    """grpcio logs a traceback when a stream's end finds that the caller's connection is gone: an ordinary event."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")


class RpcServer:
    """A gRPC server with the standard health service, which says SERVING from `ready()` to `not_ready()`."""

    def __init__(self, address: str) -> None:
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_hang_up)
        self._address = address
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    async def start(self) -> None:
        """Raises RuntimeError when the address cannot be bound."""
        await self.not_ready()
        self.grpc.add_insecure_port(self._address)
        starting = asyncio.create_task(self.grpc.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # grpcio complains of a server that runs and that nobody stops
            await to_the_end(self._give_up(starting))
            raise

    async def _give_up(self, starting: asyncio.Task[None]) -> None:
        await starting
        await self.grpc.stop(grace=None)

    async def ready(self) -> None:
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace=0.5)
