"""The shim process: the HTTP server, the links to the tokenizers, and the order in which both stop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn

from services.machine import authority
from services.machine.listen import listen
from services.options.declarations import ShimOptions
from services.process.metrics_server import new_registry
from services.process.shell import begin, run_until_stopped, to_the_end
from services.rpc.errors import unavailable
from services.rpc.hello import HelloMismatch, make_hello
from services.rpc.telemetry import LinkMessages
from services.security.metrics_token import metrics_token
from services.security.secret import cluster_secret
from services.shim.api_key import warn_if_open
from services.shim.app import make_app
from services.shim.gateway.server import GatewayServer
from services.shim.gateway.start import start_gateway
from services.shim.generations import Generations
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics
from services.shim.preparer import Preparer
from services.shim.scrape import Scrape
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.spans import Tracing
from services.telemetry.tracing import set_up_tracing

log = logging.getLogger(__name__)
SHUTDOWN_SECONDS = 1


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: services/process/shell.py handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(options: ShimOptions) -> int:
    """Runs the shim. Returns the exit status: 0 after SIGTERM or SIGINT, 1 after Fatal or HelloMismatch."""
    begin("shim", options)
    return run_until_stopped("shim", lambda: serve(options), (HelloMismatch,))


async def serve(options: ShimOptions) -> None:
    """Serves HTTP until cancelled, then ends all requests.

    Raises Fatal if it cannot listen or an option cannot be used, HelloMismatch if a tokenizer is incompatible.
    """
    if options.listen_fd is not None:
        listener = socket.socket(fileno=options.listen_fd)
    else:
        listener = listen(options.host, options.port)
    secret = cluster_secret(options)
    host, port = listener.getsockname()[:2]
    warn_if_open(host, port, options.api_key)
    client = TokenizerClient(options.tokenizer, make_hello("shim"), secret)
    registry = new_registry()
    registry.register(LinkMessages(client.links))
    metrics = ShimMetrics(registry)
    tracing = set_up_tracing("shim", options.otlp_traces_endpoint)
    generations = Generations(client, metrics, tracing)
    in_progress = InProgress(options.max_concurrent_requests, metrics)
    token = metrics_token(options.metrics_token_file, secret) if options.metrics_peers else None
    scrape = Scrape(registry, options.metrics_peers, token)
    preparer = Preparer(options)
    config = uvicorn.Config(
        make_app(generations, preparer, in_progress, options, metrics, scrape),
        lifespan="off",
        ws="none",  # no route has websockets
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = _Server(config)
    gateway = await start_gateway(options, generations, in_progress)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.gather(
            serving, preparer.start(), _log_ready(listener, client, metrics), *(link.run() for link in client.links)
        )
    finally:
        logging.getLogger("uvicorn.error").disabled = True  # it would log streams that are cut off now as errors
        generations.fail_all(unavailable("the server is stopping"))
        server.should_exit = True
        await to_the_end(_stop(serving, gateway, preparer, generations, tracing))


async def _stop(
    serving: asyncio.Task[None],
    gateway: GatewayServer | None,
    preparer: Preparer,
    generations: Generations,
    tracing: Tracing,
) -> None:
    """Waits until the HTTP server and the gateway have stopped, ends the child processes, closes the remaining
    generations and sends the last spans."""
    stopping = [serving, *([asyncio.create_task(gateway.stop(SHUTDOWN_SECONDS))] if gateway is not None else [])]
    await asyncio.gather(*stopping, return_exceptions=True)
    await preparer.close()
    generations.close_all()
    await asyncio.to_thread(tracing.stop)


async def _log_ready(listener: socket.socket, client: TokenizerClient, metrics: ShimMetrics) -> None:
    """Waits for the first tokenizer, which connects once an engine has a worker. Then exports the model's metrics and
    logs that the shim is ready."""
    await client.dispatcher.first_link
    assert client.dispatcher.peer is not None
    facts = client.dispatcher.peer.engine
    metrics.of(facts.served_model_names[0])
    tokens = facts.kv_groups[0].num_blocks * facts.block_size
    log.info(
        "ready on http://%s serving %s; KV cache of %d tokens, %.1f requests of maximum length (%d tokens)",
        authority(*listener.getsockname()[:2]),
        ", ".join(facts.served_model_names),
        tokens,
        tokens / facts.max_model_len,
        facts.max_model_len,
    )
