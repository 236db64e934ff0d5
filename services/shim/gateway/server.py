"""The gateway's gRPC server: options, check of the API key, health, reflection. Knows no RPC of VllmEngine."""

import grpc
from grpc_health.v1 import health_pb2_grpc

from services.errors import Fatal
from services.machine import authority
from services.rpc.grpc_log import configure_grpc_log
from services.rpc.health import Health
from services.rpc.transport import MAX_STREAMS, SERVER_OPTIONS, add_reflection
from services.shim.access.keys import Keys
from services.shim.gateway.key_check import KeyCheck
from services.shim.gateway.service_name import ENGINE_SERVICE
from services.shim.health import ShimHealth

STREAMS, RECEIVED = "grpc.max_concurrent_streams", "grpc.max_receive_message_length"
RECHECK_S = 0.5  # between two looks at the status, for a watcher
MAX_RECEIVED_BYTES = 16 * 1024 * 1024  # of one request: millions of ids, which take far more memory than bytes here


class GatewayServer:
    """A plaintext gRPC server without a service yet: the caller adds VllmEngine to `grpc` before `start`.

    `keys` None: none is asked for. `max_requests`: of Generate. A gateway has one connection for all its
    requests, so that many streams are open on it.
    """

    def __init__(self, health: ShimHealth, keys: Keys | None, max_requests: int, *, reflection: bool) -> None:
        configure_grpc_log()
        own = {STREAMS: max_requests + MAX_STREAMS, RECEIVED: MAX_RECEIVED_BYTES}
        options = [*(option for option in SERVER_OPTIONS if option[0] not in own), *own.items()]
        self.grpc = grpc.aio.server(
            interceptors=[KeyCheck(keys)] if keys is not None else [],
            options=options,
        )
        self._health = Health(("", ENGINE_SERVICE), health.is_healthy, recheck_s=RECHECK_S)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        if reflection:
            add_reflection(self.grpc, ENGINE_SERVICE)

    async def start(self, host: str, port: int) -> int:
        """Binds the address and serves. Returns the port. Raises Fatal if the address cannot be bound."""
        try:
            port = self.grpc.add_insecure_port(authority(host, port))
        except RuntimeError as error:
            raise Fatal(f"cannot listen on {authority(host, port)}: {error}") from error
        await self.grpc.start()
        return port

    async def stop(self, seconds: float) -> None:
        """Refuses new RPCs, and cancels those that have not ended after `seconds`."""
        self._health.stop()
        await self.grpc.stop(grace=seconds)
