"""The engine process: the gRPC servicer on the event loop, the busy loop in its thread, and the calls between them.

Starts and stops both, and sets the health service by the worker's state. Knows nothing of requests.
"""

import asyncio
import functools
import logging
import signal

import zmq

from engine_core.scheduler import SchedulerConfig
from engine_core.worker_messages import PROTOCOL, BatchLimits, ModelFacts
from services.engine.busy_loop import BusyLoop, BusyLoopConfig, Callbacks
from services.engine.event_loop import call_in_event_loop
from services.engine.metrics import EngineMetrics
from services.engine.queue_limits import QueueLimits
from services.engine.recording_writer import RecordingWriter
from services.engine.servicer import EngineServicer
from services.engine.worker_link import WorkerLink
from services.errors import Fatal
from services.options.declarations import QUEUED_REQS, EngineOptions
from services.process.shell import begin, run_until_stopped, to_the_end
from services.rpc.generated import engine_pb2_grpc
from services.rpc.transport import RpcServer
from services.security.secret import cluster_secret
from services.telemetry.metrics_server import new_registry, open_metrics_server
from services.telemetry.spans import Tracing
from services.telemetry.tracing import set_up_tracing

log = logging.getLogger(__name__)
STEPS_IN_FLIGHT = 2


def main(options: EngineOptions) -> int:
    """Returns the exit status; 0 after SIGTERM or SIGINT."""
    begin("engine", options)
    return run_until_stopped("engine", lambda: serve(options), (ValueError, RuntimeError, zmq.ZMQError))


async def serve(options: EngineOptions) -> None:
    """Runs until cancelled. When the worker dies, waits for the next one. Raises Fatal after any other error."""
    secret = cluster_secret(options)
    limits = BatchLimits(PROTOCOL, options.max_num_seqs, options.max_num_batched_tokens)
    here = asyncio.get_running_loop()
    failed: asyncio.Future[None] = here.create_future()
    ready = asyncio.Event()
    health_updates: set[asyncio.Task[None]] = set()  # kept here: the event loop holds only weak references to tasks

    recording = RecordingWriter(options.flight_recorder_dir)
    here.add_signal_handler(signal.SIGUSR1, lambda: here.run_in_executor(None, recording.write_on_request))

    def on_failed(error: Exception) -> None:
        if not isinstance(error, Fatal):
            log.error("the engine ends after an error in its scheduling loop", exc_info=error)
            recording.write_on_failure()
        if not failed.done():
            failed.set_exception(error if isinstance(error, Fatal) else Fatal(str(error)))

    def on_registered(facts: ModelFacts) -> None:
        try:
            servicer.registered(facts)
        except Fatal as error:
            on_failed(error)
            return
        ready.set()
        health_updates.add(asyncio.create_task(server.ready()))

    def on_lost(reason: str) -> None:
        log.warning("worker lost: %s; requests wait until a worker registers", reason)
        ready.clear()
        health_updates.add(asyncio.create_task(server.not_ready()))

    callbacks = Callbacks(
        registered=lambda facts: call_in_event_loop(here, on_registered, facts),
        published=lambda events, stats, times: call_in_event_loop(here, servicer.published, events, stats, times),
        lost=lambda reason: call_in_event_loop(here, on_lost, reason),
        failed=lambda error: call_in_event_loop(here, on_failed, error),
    )
    config = _config(options)
    link = WorkerLink(options.worker, limits, secret)
    loop = BusyLoop(link, config, callbacks, recording.recorder)
    registry = new_registry()
    tracing = set_up_tracing("engine", options.otlp_traces_endpoint)
    make_metrics = functools.partial(EngineMetrics, registry, options.enable_prefix_caching)
    queue = QueueLimits(
        options.max_num_queued_reqs or options.max_num_seqs + QUEUED_REQS, options.max_num_queued_tokens
    )
    servicer = EngineServicer(loop, limits, queue, config.scheduler.by_priority, options.seed, make_metrics, tracing)
    server = RpcServer(options.listen, secret)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server.grpc)
    with open_metrics_server(options, secret, registry, ready.is_set):
        await server.start()
        loop.start()
        try:
            await failed
        finally:
            await to_the_end(_stop(server, loop, servicer, tracing))


def _config(options: EngineOptions) -> BusyLoopConfig:
    limits = SchedulerConfig(
        options.max_num_seqs,
        options.max_num_batched_tokens,
        options.long_prefill_token_threshold,
        by_priority=options.scheduling_policy == "priority",
    )
    steps_in_flight = STEPS_IN_FLIGHT if options.async_scheduling else 1
    return BusyLoopConfig(limits, options.enable_prefix_caching, steps_in_flight, options.step_timeout)


async def _stop(server: RpcServer, loop: BusyLoop, servicer: EngineServicer, tracing: Tracing) -> None:
    await servicer.callee.say_goodbye()
    await server.stop()
    await asyncio.to_thread(loop.stop)
    servicer.stop()
    await asyncio.to_thread(tracing.stop)
