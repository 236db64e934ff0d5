"""gRPC channels and servers with tandem's options: large messages, keepalive pings that detect a dead peer in seconds.

`grpc.keepalive_timeout_ms` has no effect in grpcio 1.85, so `grpc.http2.ping_timeout_ms` is set instead. Servers accept
pings on a stream without data, because a long prefill sends none.
"""

import asyncio

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.process.shell import to_the_end
from services.rpc.grpc_log import configure_grpc_log
from services.security.addresses import check_address
from services.security.secret import ClusterSecret

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
HANDSHAKE_MS = 5000  # timeout of the TLS handshake
MAX_STREAMS = 256  # per connection: a caller has one for its requests, and one for each unary call
SERVER_OPTIONS = [
    *_SHARED,
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


def open_channel(target: str, secret: ClusterSecret | None = None) -> grpc.aio.Channel:
    """Returns a channel to `unix:/path` or `host:port`; over TCP with TLS from `secret`.

    Raises Fatal for an address that check_address refuses, such as TCP without a secret.
    """
    secret = check_address(target, secret)
    if secret is None:
        return grpc.aio.insecure_channel(target, options=_CHANNEL)
    from services.security.tls import CHANNEL_OPTIONS, channel_credentials  # needs cryptography

    return grpc.aio.secure_channel(target, channel_credentials(secret), options=[*_CHANNEL, *CHANNEL_OPTIONS])


class RpcServer:
    """A gRPC server with the standard health service. Its status is SERVING from `ready()` to `not_ready()`."""

    def __init__(self, address: str, secret: ClusterSecret | None = None) -> None:
        """Raises Fatal for an address that check_address refuses, such as TCP without a secret."""
        configure_grpc_log()
        self._address = address
        self._secret = check_address(address, secret)
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    async def start(self) -> None:
        """Binds the address and serves, not yet ready. Raises RuntimeError when the address cannot be bound."""
        await self.not_ready()
        self._bind()
        starting = asyncio.create_task(self.grpc.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # grpcio logs an error for a running server that is never stopped
            await to_the_end(self._stop_after(starting))
            raise

    def _bind(self) -> None:
        if self._secret is None:
            self.grpc.add_insecure_port(self._address)
            return
        from services.security.tls import server_credentials  # needs cryptography

        self.grpc.add_secure_port(self._address, server_credentials(self._secret))

    async def _stop_after(self, starting: asyncio.Task[None]) -> None:
        await starting
        await self.grpc.stop(grace=None)

    async def ready(self) -> None:
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace=0.5)
