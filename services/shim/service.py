"""The shim process: the HTTP server, the links to the tokenizers, and the order in which both stop."""

import asyncio
import contextlib
import dataclasses
import logging
import socket

from services.machine.listen import listen, listen_unix
from services.options.declarations import ShimOptions
from services.process.drain import run_and_drain
from services.process.metrics_server import new_registry
from services.process.progress_page import Progress
from services.process.readiness import tell
from services.process.shell import begin, on_hang_up, run_until_stopped, to_the_end
from services.rpc.errors import unavailable
from services.rpc.hello import HelloMismatch, make_hello
from services.rpc.telemetry import LinkMessages
from services.security.https import https_of
from services.security.metrics_token import metrics_token
from services.security.secret import cluster_secret
from services.shim.access.key_file import KeyReload
from services.shim.access.rules import access_rules, warn_if_open
from services.shim.app import make_app
from services.shim.gateway.server import GatewayServer
from services.shim.gateway.start import start_gateway
from services.shim.generations import Generations
from services.shim.http.limits import HttpLimits
from services.shim.http.server import SHUTDOWN_SECONDS, HttpServer, url_of
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics
from services.shim.preparer import Preparer
from services.shim.scrape import Scrape
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.spans import Tracing
from services.telemetry.tracing import set_up_tracing

log = logging.getLogger(__name__)


def main(options: ShimOptions) -> int:
    """Runs the shim. Returns the exit status: 0 after SIGTERM or SIGINT, 1 after Fatal or HelloMismatch."""
    progress = begin("shim", options)
    return run_until_stopped("shim", lambda: serve(options, progress), (HelloMismatch,))


async def serve(options: ShimOptions, progress: Progress) -> None:
    """Serves HTTP until cancelled; then lets the requests in progress end, as long as --shutdown-timeout says.

    Raises Fatal if it cannot listen or an option cannot be used, HelloMismatch if a tokenizer is incompatible.
    """
    with contextlib.ExitStack() as held:
        if options.listen_fd is not None:
            listener = socket.socket(fileno=options.listen_fd)
        elif options.uds is not None:
            listener = held.enter_context(listen_unix(options.uds))
        else:
            listener = listen(options.host, options.port)
        await _serve_on(listener, options, progress)


async def _serve_on(listener: socket.socket, options: ShimOptions, progress: Progress) -> None:
    https = https_of(dataclasses.asdict(options))
    secret = cluster_secret(options)
    host, port = ("", 0) if listener.family == socket.AF_UNIX else listener.getsockname()[:2]
    access = access_rules(options, host)
    if host:
        warn_if_open(host, port, access.keys)
    on_hang_up(KeyReload(access.keys, options))
    hello = make_hello("shim")
    client = TokenizerClient(options.tokenizer, hello, secret, resume_wait=options.resume_wait, worked=progress.worked)
    registry = new_registry()
    registry.register(LinkMessages(client.links))
    metrics = ShimMetrics(registry)
    tracing = set_up_tracing("shim", options.otlp_traces_endpoint)
    generations = Generations(client, metrics, tracing)
    in_progress = InProgress(options.max_concurrent_requests, metrics)
    token = metrics_token(options.metrics_token_file, secret) if options.metrics_peers else None
    scrape = Scrape(registry, options.metrics_peers, token)
    preparer = Preparer(options)
    app = make_app(generations, preparer, in_progress, access, metrics, scrape)
    limits = HttpLimits.of(options)
    server = HttpServer(app, limits, metrics.http_rejections, https, refresh=options.enable_ssl_refresh)
    gateway = await start_gateway(access, generations, in_progress)
    progress.beat_in_event_loop()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready = _report_ready(server, url_of(listener, tls=https is not None), client, metrics, options.ready_fd)
    stopping = unavailable("the server is stopping")
    try:
        await run_and_drain(
            [asyncio.shield(serving), preparer.start(), ready, *(link.run() for link in client.links)],
            lambda: in_progress.drain(stopping),
            options.shutdown_timeout,
        )
    finally:
        logging.getLogger("uvicorn.error").disabled = True  # it would log streams that are cut off now as errors
        generations.fail_all(stopping)
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


async def _report_ready(
    server: HttpServer, url: str, client: TokenizerClient, metrics: ShimMetrics, ready_fd: int | None
) -> None:
    """Waits for the first tokenizer, which connects once an engine has a worker. Then exports the model's metrics and
    tells the log, and the launcher through `ready_fd`, that the shim is ready: /health answers 200."""
    await server.is_listening.wait()
    await client.dispatcher.first_link
    assert client.dispatcher.peer is not None
    facts = client.dispatcher.peer.engine
    metrics.of(facts.served_model_names[0])
    tokens = facts.kv_cache_tokens
    log.info(
        "ready on %s serving %s; KV cache of %d tokens, %.1f requests of maximum length (%d tokens)",
        url,
        ", ".join(facts.served_model_names),
        tokens,
        tokens / facts.max_model_len,
        facts.max_model_len,
    )
    if ready_fd is not None:
        tell(ready_fd)
