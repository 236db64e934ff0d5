"""The worker process: connects to an engine, loads the model, registers, runs plans; then serves the next engine."""

import logging
import signal
import sys
import time
from contextlib import nullcontext
from types import FrameType

from engine_core.step_plan import BadMessage
from engine_core.worker_messages import BatchLimits
from services.errors import Fatal
from services.machine import process_age
from services.machine.freed_memory import give_back_freed
from services.machine.own_limits import offer_to_oom_killer
from services.model_files.resolve import resolve
from services.options.declarations import WorkerOptions
from services.process.metrics_server import HealthChecks, new_registry, open_metrics_server
from services.process.progress_page import Progress
from services.process.shell import HAND_OVER, begin
from services.process.spare import take_over_in_thread
from services.process.worker_record import RecordFile, WorkerRecord
from services.security.secret import ClusterSecret, cluster_secret
from services.telemetry.logs import fail
from services.telemetry.tracing import set_up_tracing
from services.worker.building import build_runner
from services.worker.engine_link import EngineGone, EngineLink, EngineRefused
from services.worker.errors import ModelError
from services.worker.facts import model_facts
from services.worker.grammar_source import GrammarSource
from services.worker.loading import LoadedModel, load_model
from services.worker.model_runner import ModelRunner
from services.worker.out_of_memory import OutOfMemory, out_of_memory_raised
from services.worker.phases import Phases
from services.worker.preflight import check
from services.worker.preparer import Preparer
from services.worker.step_loop import StepLoop
from services.worker.telemetry import StepSpans, WorkerMetrics

log = logging.getLogger(__name__)
FIRST_RETRY_SECONDS, RETRY_SECONDS = 0.1, 2.0  # before reconnecting after a refusal; doubles. A bad plan: the latter
OOM_SCORE = 250  # if memory runs out, the kernel ends the worker before other roles: its requests resume


def main(options: WorkerOptions) -> int:
    """Runs the worker until SIGTERM, SIGINT or HAND_OVER, which exit with status 0, or a fatal error. A spare process
    waits here, where everything is imported: weights and KV cache have no room for two.

    Returns the exit status, 1 after Fatal or ModelError, which it reports in one line. Others are raised.
    """
    progress = begin("worker", options)
    offer_to_oom_killer(OOM_SCORE)
    for number in (signal.SIGTERM, signal.SIGINT, HAND_OVER):
        signal.signal(number, _stop)
    try:
        _serve(take_over_in_thread(options, progress), progress)
    except (Fatal, ModelError) as error:
        return fail("worker", error)
    return 0


def _serve(options: WorkerOptions, progress: Progress) -> None:
    registry = new_registry()
    metrics = WorkerMetrics(registry)
    tracing = set_up_tracing("worker", options.otlp_traces_endpoint)
    secret = cluster_secret(options)
    checks = HealthChecks(progress.is_alive, metrics.registered.is_set, metrics.has_registered.is_set)
    with open_metrics_server(options, secret, registry, checks):
        record = RecordFile(options.record_fd)
        try:
            _run(options, secret, metrics, StepSpans(tracing), progress, record)
        except SystemExit:
            record.update(ended_in_order=True)  # no request has killed it
            raise
        finally:
            tracing.stop()


def _run(
    options: WorkerOptions,
    secret: ClusterSecret | None,
    metrics: WorkerMetrics,
    spans: StepSpans,
    progress: Progress,
    record: RecordFile,
) -> None:
    """Serves one engine after the other. The weights stay loaded; KV cache, batch and graphs are built per engine.

    Never returns. Raises Fatal and ModelError.
    """
    loaded: tuple[LoadedModel, GrammarSource] | None = None
    retry = FIRST_RETRY_SECONDS
    is_intact, phases = record.read().ended_in_order, Phases(process_age() if options.spare_fd is None else 0.0)
    record.update(serving=False, ended_in_order=False)
    while True:
        link, pause, is_lost = EngineLink(options.engine, secret), 0.0, False
        try:
            link.hello(is_intact=is_intact)
            if loaded is None:
                loaded = _load(options, record, phases)
            model, source = loaded
            # No variable may keep the runner: its KV cache must be freed before the next engine's is allocated.
            _run_plans(link, _register(link, model, options, record, phases), source, metrics, spans, progress)
        except EngineRefused as refused:
            # Maybe by an engine that is just ending: its socket accepts until then.
            log.warning("%s; connecting again in %.1f s", refused, retry)
            pause, retry = retry, min(2 * retry, RETRY_SECONDS)
        except EngineGone as gone:
            log.warning("%s; waiting for the next engine", gone)
            is_lost = True
            retry = FIRST_RETRY_SECONDS
        except OutOfMemory as error:
            _shrink(record, error)
        except BadMessage as error:
            log.error("bad plan from the engine: %s; registering again in %.0f s", error, RETRY_SECONDS)
            pause = RETRY_SECONDS
        finally:
            metrics.registered.clear()
            if link.is_registered:
                is_intact = is_lost
            link.close()
            give_back_freed()  # each engine has a preparer's thread of its own
            phases = Phases()
        time.sleep(pause)


def _shrink(record: RecordFile, error: OutOfMemory) -> None:
    """Logs what happens, and what to set. Raises ModelError if the KV cache gets no smaller."""
    before = record.read().shrinks
    advice = record.memory_ran_out()
    if record.read().shrinks == before:
        raise ModelError(f"memory ran out ({error}): {advice}")
    log.error("memory ran out (%s): %s", str(error), advice)  # the error itself would keep the KV cache


def _register(
    link: EngineLink, model: LoadedModel, options: WorkerOptions, record: RecordFile, phases: Phases
) -> ModelRunner:
    """Builds and returns a model runner for the engine's limits, and registers the model's facts with the engine.

    Raises as EngineLink.limits does, ModelError, and OutOfMemory if a worker of this server has been registered before.
    """
    limits = link.limits()
    phases.done("waiting for the engine")
    known = _known(record, limits)
    with out_of_memory_raised() if known.cache is not None else nullcontext():
        runner, shape = build_runner(model, options, limits, phases, record=known)
    facts = model_facts(model, options, shape)
    link.register(facts)
    record.update(cache=known.cache or facts.kv_cache_size, serving=True)
    log.info("ready after %s", phases)
    return runner


def _known(record: RecordFile, limits: BatchLimits) -> WorkerRecord:
    """Returns the record. Its KV cache is that of an earlier worker for these limits, of the length that the engine
    accepts; None if there was none."""
    sizes, told, known = (limits.max_num_seqs, limits.max_num_batched_tokens), limits.kv_cache, record.read()
    cache = known.cache if known.limits == sizes else None
    if cache is not None and (told is None or told.max_model_len == cache.max_model_len):
        return known
    return record.update(cache=told, limits=sizes, shrinks=0)


def _load(options: WorkerOptions, record: RecordFile, phases: Phases) -> tuple[LoadedModel, GrammarSource]:
    weights = options.load_format != "dummy"
    path = resolve(options.model, options.revision, weights=weights, check=lambda path: check(path, options))
    model = load_model(path, options, record=record)
    phases.done("weights")
    source = GrammarSource(model.checkpoint, model.decoder.description.vocab_size)
    phases.done("grammars")
    return model, source


def _run_plans(
    link: EngineLink,
    runner: ModelRunner,
    source: GrammarSource,
    metrics: WorkerMetrics,
    spans: StepSpans,
    progress: Progress,
) -> None:
    """Runs plans until EngineGone (lost engine), Fatal (lasting refusal), BadMessage (bad plan) or OutOfMemory is
    raised.

    Then ends the preparer and disarms the watchdog.
    """
    metrics.registered.set()
    metrics.has_registered.set()
    loop = StepLoop(link, runner, metrics, spans, progress)
    preparer = Preparer(link, source, runner.grammars)
    try:
        with out_of_memory_raised():
            loop.run()
    finally:
        loop.close()
        preparer.close()


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
