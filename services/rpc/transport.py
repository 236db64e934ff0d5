"""gRPC channels and servers with tandem's options (services/rpc/channel_options.py).

Servers accept pings on a stream without data, because a long prefill sends none.
"""

import asyncio

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from services.process.shell import to_the_end
from services.rpc.channel_options import CHANNEL_OPTIONS, SHARED_OPTIONS
from services.rpc.grpc_log import configure_grpc_log
from services.rpc.health import Health
from services.security.addresses import check_address
from services.security.credential_files import TLS_OPTIONS
from services.security.secret import ClusterSecret

HANDSHAKE_MS = 5000  # timeout of the TLS handshake
MAX_STREAMS = 4096  # per connection: a role has one for its requests, a program one for each call
SERVER_OPTIONS = [
    *SHARED_OPTIONS,
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
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    from services.security.tls import channel_credentials  # needs cryptography

    return grpc.aio.secure_channel(target, channel_credentials(secret), options=[*CHANNEL_OPTIONS, *TLS_OPTIONS])


def add_reflection(server: grpc.aio.Server, service: str) -> None:
    """Lets clients list and describe `service`, health and reflection (grpc.reflection.v1alpha).

    https://grpc.io/docs/guides/reflection/
    """
    from grpc_reflection.v1alpha import reflection  # only where it is on

    names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


class RpcServer:
    """A gRPC server of one service, with the standard health service and, if wanted, reflection.

    The health of the service, and that of the whole server (""), is NOT_SERVING until `set_ready(True)`.
    """

    def __init__(
        self, address: str, secret: ClusterSecret | None = None, *, service: str = "", reflection: bool = False
    ) -> None:
        """`service`: its full name. Raises Fatal for an address that check_address refuses, such as TCP without a
        secret."""
        configure_grpc_log()
        self._address = address
        self._secret = check_address(address, secret)
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS)
        self._ready = False
        self._health = Health(("", service), lambda: self._ready)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if reflection:
            add_reflection(self.grpc, service)

    async def start(self) -> None:
        """Binds the address and serves, not yet ready. Raises RuntimeError when the address cannot be bound."""
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

    def set_ready(self, ready: bool) -> None:
        """Sets the health to SERVING or NOT_SERVING."""
        self._ready = ready
        self._health.changed()

    async def stop(self) -> None:
        self._health.stop()
        await self.grpc.stop(grace=0.5)
