"""The engine process: the gRPC servicer on the event loop, the busy loop in its thread, and the calls between them.

Starts and stops both, and sets the health service by the worker's state. Knows nothing of requests.
"""

import asyncio
import functools
import logging
import signal

import zmq

from engine_core.scheduler_config import SchedulerConfig
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
from services.process.drain import run_and_drain
from services.process.metrics_server import HealthChecks, new_registry, open_metrics_server
from services.process.progress_page import Progress
from services.process.shell import begin, run_until_stopped, to_the_end
from services.process.spare import take_over
from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.rpc.transport import RpcServer
from services.security.secret import cache_root_key, cluster_secret
from services.telemetry.spans import Tracing
from services.telemetry.tracing import set_up_tracing

log = logging.getLogger(__name__)
SERVICE = engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name
STEPS_IN_FLIGHT = 2  # with asynchronous scheduling


def main(options: EngineOptions) -> int:
    """Runs the engine. Returns the exit status: 0 after SIGTERM or SIGINT, 1 after Fatal, ValueError, RuntimeError or
    ZMQError."""
    progress = begin("engine", options)
    return run_until_stopped("engine", lambda: serve(options, progress), (ValueError, RuntimeError, zmq.ZMQError))


async def serve(options: EngineOptions, progress: Progress) -> None:
    """Serves tokenizers until cancelled; then lets the requests in progress end, as long as --shutdown-timeout says.
    Those that are left resume elsewhere. When the worker dies, requests wait for the next one.

    Raises Fatal for an option that cannot be used, after an error in the busy loop, and for a later worker with another
    model; ValueError for batch limits that contradict each other; RuntimeError or ZMQError if it cannot bind.
    """
    progress.beat_in_event_loop()
    options = await take_over(options)
    secret = cluster_secret(options)
    root_key = cache_root_key(secret, options.cache_root_key)
    limits = BatchLimits(PROTOCOL, options.max_num_seqs, options.max_num_batched_tokens)
    recording = RecordingWriter(options.flight_recorder_dir)
    here = asyncio.get_running_loop()
    here.add_signal_handler(signal.SIGUSR1, lambda: here.run_in_executor(None, recording.write_on_request))
    config = busy_loop_config(options)
    loop = BusyLoop(WorkerLink(options.worker, limits, secret), config, recording.recorder)
    registry = new_registry()
    tracing = set_up_tracing("engine", options.otlp_traces_endpoint)
    make_metrics = functools.partial(EngineMetrics, registry, options.enable_prefix_caching)
    queue = QueueLimits(
        options.max_num_queued_reqs or options.max_num_seqs + QUEUED_REQS, options.max_num_queued_tokens
    )
    servicer = EngineServicer(
        loop,
        limits,
        queue,
        config.scheduler.by_priority,
        options.seed,
        root_key,
        options.resume_wait,
        make_metrics,
        tracing,
    )
    server = RpcServer(options.listen, secret, service=SERVICE, reflection=options.grpc_reflection)
    servicer.callee.worked = progress.worked
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server.grpc)
    events = _BusyLoopEvents(servicer, server, recording, progress)
    checks = HealthChecks(progress.is_alive, servicer.is_ready, servicer.is_healthy)
    with open_metrics_server(options, secret, registry, checks):
        await server.start()
        loop.start(events.callbacks())
        try:
            await run_and_drain([events.failed], lambda: _drain(server, servicer), options.shutdown_timeout)
        finally:
            await to_the_end(_stop(server, loop, servicer, tracing, progress))


class _BusyLoopEvents:
    """Handles the busy loop's callbacks, on the event loop."""

    def __init__(
        self, servicer: EngineServicer, server: RpcServer, recording: RecordingWriter, progress: Progress
    ) -> None:
        self._progress = progress
        self._servicer = servicer
        self._server = server
        self._recording = recording
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # gets the loop's error

    def callbacks(self) -> Callbacks:
        """Returns the functions for the busy loop's thread; each calls the handler on the event loop."""
        call = functools.partial(call_in_event_loop, asyncio.get_running_loop())
        return Callbacks(
            registered=lambda facts: call(self._on_registered, facts),
            lost=lambda reason: call(self._on_lost, reason),
            published=lambda events, stats, times: call(self._servicer.published, events, stats, times),
            failed=lambda error: call(self._on_failed, error),
            beat=self._progress.thread.beat,
            pause=self._progress.thread.pause,
        )

    def _on_registered(self, facts: ModelFacts) -> None:
        try:
            self._servicer.registered(facts)
        except Fatal as error:
            self._on_failed(error)
            return
        self._server.set_ready(not self._servicer.callee.is_draining)

    def _on_lost(self, reason: str) -> None:
        log.warning("worker lost: %s; requests wait until a worker registers", reason)
        self._servicer.lost()
        self._server.set_ready(False)

    def _on_failed(self, error: Exception) -> None:
        self._progress.thread.pause()
        if not isinstance(error, Fatal):
            log.error("the engine ends after an error in its busy loop", exc_info=error)
            self._recording.write_on_failure()
        if not self.failed.done():
            self.failed.set_exception(error if isinstance(error, Fatal) else Fatal(str(error)))


def busy_loop_config(options: EngineOptions) -> BusyLoopConfig:
    """Returns those of the engine's options that concern steps. Raises ValueError if the batch limits do not fit."""
    scheduler = SchedulerConfig(
        options.max_num_seqs,
        options.max_num_batched_tokens,
        options.long_prefill_token_threshold,
        by_priority=options.scheduling_policy == "priority",
    )
    steps_in_flight = STEPS_IN_FLIGHT if options.async_scheduling else 1
    return BusyLoopConfig(scheduler, options.enable_prefix_caching, steps_in_flight, options.step_timeout)


async def _drain(server: RpcServer, servicer: EngineServicer) -> None:
    server.set_ready(False)
    await servicer.callee.drain()


async def _stop(
    server: RpcServer, loop: BusyLoop, servicer: EngineServicer, tracing: Tracing, progress: Progress
) -> None:
    await servicer.callee.close_streams()
    await server.stop()
    await asyncio.to_thread(loop.stop)
    progress.thread.pause()
    servicer.stop()
    await asyncio.to_thread(tracing.stop)
