"""Starts the gateway's server, if the shim has a --grpc-port. Imports its stubs only then."""

import logging

from services.errors import Fatal
from services.machine import authority
from services.process.gateway_address import gateway_address
from services.shim.access.rules import AccessRules, warn_if_open
from services.shim.gateway.server import GatewayServer
from services.shim.generations import Generations
from services.shim.health import ShimHealth
from services.shim.in_progress import InProgress

log = logging.getLogger(__name__)


async def start_gateway(access: AccessRules, generations: Generations, in_progress: InProgress) -> GatewayServer | None:
    """Returns the running gateway; None without a --grpc-port.

    Raises Fatal if the stubs are not installed, the port cannot be bound, or the address needs a key.
    """
    options = access.options
    if options.grpc_port is None:
        if options.grpc_host is not None or options.grpc_no_key:
            raise Fatal("--grpc-host and --grpc-no-key need --grpc-port")
        return None
    host, port = gateway_address(options.grpc_host, options.grpc_port, no_key=options.grpc_no_key)
    from services.shim.gateway.servicer import add_servicer  # needs the extra

    keys = None if options.grpc_no_key else access.keys
    health = ShimHealth(generations.client, in_progress)
    server = GatewayServer(health, keys, options.max_concurrent_requests, reflection=options.grpc_reflection)
    add_servicer(server.grpc, generations, in_progress, health, options.max_logprob_entries)
    port = await server.start(host, port)
    warn_if_open(host, port, keys)
    log.info("gateways reach vLLM's engine protocol on grpc://%s", authority(host, port))
    return server
