"""The tokenizer process: reads the model's tokenizer and chat template, serves shims, connects to the engines."""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from services.model_files.resolve import resolve
from services.options.tokenizer import TokenizerOptions
from services.process.drain import run_and_drain
from services.process.metrics_server import HealthChecks, new_registry, open_metrics_server
from services.process.progress_page import Progress
from services.process.shell import begin, run_until_stopped, to_the_end
from services.process.spare import take_over
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2, text_pb2_grpc
from services.rpc.hello import HelloMismatch, make_hello
from services.rpc.telemetry import LinkMessages
from services.rpc.transport import RpcServer
from services.security.secret import cluster_secret
from services.telemetry.spans import Tracing
from services.telemetry.tracing import set_up_tracing
from services.tokenizer.answer_grammar import AnswerGrammars
from services.tokenizer.chat_renderer import RendererSettings
from services.tokenizer.chat_rendering import ChatRendering
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.find_template import find_template, find_tool_template, response_template, special_tokens
from services.tokenizer.grammar_checks import GrammarChecks
from services.tokenizer.guarded_encoding import GuardedEncoding
from services.tokenizer.known_grammars import KnownGrammars
from services.tokenizer.model_archive import ModelArchive
from services.tokenizer.model_facts import model_facts
from services.tokenizer.output_resolver import OutputResolver
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.parsing.detect import Formats, ModelFiles, Wanted, select_formats
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.servicer import TextServicer
from services.tokenizer.structured.settings import StructuredSettings
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)
SERVICE = text_pb2.DESCRIPTOR.services_by_name["TextService"].full_name


def main(options: TokenizerOptions) -> int:
    """Runs the tokenizer. Returns the exit status: 0 after SIGTERM or SIGINT, 1 after Fatal, HelloMismatch or
    RuntimeError."""
    progress = begin("tokenizer", options)
    return run_until_stopped("tokenizer", lambda: serve(options, progress), (HelloMismatch, RuntimeError))


@dataclass(frozen=True)
class _Model:
    """What a tokenizer reads, and builds from it alone. Nothing else at its start takes long."""

    path: Path
    vocabulary: Vocabulary
    template: str | None
    facts: pb.ModelInfo
    formats: Formats
    guard: GuardedEncoding | None
    rendering: ChatRendering


def _load(options: TokenizerOptions) -> _Model:
    """Raises Fatal for a model or option that cannot be used."""
    path = resolve(options.model, options.revision, weights=False)
    vocabulary = Vocabulary(path)
    template = find_template(path, options.chat_template)
    tool_template = find_tool_template(path, options.chat_template)
    facts = model_facts(path, vocabulary)
    formats = select_formats(
        Wanted(options.tool_call_parser, options.reasoning_parser, options.tool_parser_plugin),
        ModelFiles(tool_template or template, facts.model_type, response_template(path), _added_tokens(vocabulary)),
    )
    guard = GuardedEncoding(vocabulary) if not options.allow_special_tokens_in_content else None
    rendering = ChatRendering(
        RendererSettings(
            template,
            special_tokens(path),
            tool_template,
            dict(options.default_chat_template_kwargs or {}),
            options.trust_request_chat_template,
            guard.control_tokens if guard is not None else (),
        ),
        options.chat_template_timeout,
    )
    return _Model(path, vocabulary, template, facts, formats, guard, rendering)


async def serve(options: TokenizerOptions, progress: Progress) -> None:
    """Loads, waits for its place if it is a spare process, then serves shims until cancelled; then lets the requests in
    progress end, as long as --shutdown-timeout says. Those that are left resume elsewhere.

    Raises Fatal for a model or option that cannot be used, RuntimeError when the address cannot be bound, and
    HelloMismatch for an engine with another tokenizer.json, protocol or role.
    """
    model = _load(options)
    await model.rendering.start()
    progress.beat_in_event_loop()
    options = await take_over(options)
    hello = make_hello("tokenizer", digest=model.vocabulary.digest)
    secret = cluster_secret(options)
    engines = EngineClient(options.engine, hello, secret, resume_wait=options.resume_wait)
    server = RpcServer(options.listen, secret, service=SERVICE, reflection=options.grpc_reflection)
    registry = new_registry()
    registry.register(LinkMessages(engines.links))
    tracing = set_up_tracing("tokenizer", options.otlp_traces_endpoint)
    formats = model.formats
    encoder = PromptEncoder(model.vocabulary, model.rendering, engines, model.guard)
    answer_formats = AnswerFormats(model.vocabulary, formats.tools, formats.reasoning)
    settings = StructuredSettings(**(options.structured_outputs_config or {}))
    grammars = AnswerGrammars(answer_formats, settings)
    resolver = OutputResolver(model.vocabulary, engines, grammars, KnownGrammars(model.path), GrammarChecks(registry))
    servicer = TextServicer(
        model.vocabulary,
        encoder,
        engines,
        hello,
        TokenizerTelemetry(registry, tracing, formats.tools.name if formats.tools is not None else None),
        model.facts,
        ModelArchive(model.path, model.template),
        answer_formats,
        resolver,
    )
    servicer.callee.worked = progress.worked
    text_pb2_grpc.add_TextServiceServicer_to_server(servicer, server.grpc)
    checks = HealthChecks(progress.is_alive, servicer.is_ready, servicer.is_healthy)
    with open_metrics_server(options, secret, registry, checks):
        await server.start()
        log.info("tokenizer loaded")
        try:
            reporting = _report_ready(server, servicer, engines, resolver)
            work = [reporting, *(link.run() for link in engines.links)]
            await run_and_drain(work, lambda: _drain(server, servicer), options.shutdown_timeout)
        finally:
            await to_the_end(_stop(server, servicer, model.rendering, tracing))


def _added_tokens(vocabulary: Vocabulary) -> frozenset[str]:
    return frozenset(token.content for token in vocabulary.tokenizer.get_added_tokens_decoder().values())


async def _report_ready(
    server: RpcServer, servicer: TextServicer, engines: EngineClient, resolver: OutputResolver
) -> None:
    """Keeps the health service: ready while an engine is connected, and this process does not stop. Tells the shims
    whether a token could be made, and of an engine with other facts."""
    changed, told = engines.dispatcher.links_changed, None
    while True:
        await changed.wait()
        changed.clear()
        known = engines.dispatcher.peer
        if known is not None and known.engine != told:
            if told is not None:
                log.info("an engine has other facts than the one before: the shims connect again")
                servicer.callee.renew_streams()
            told = known.engine
            await resolver.prepare()
        servicer.callee.tell_readiness()
        server.set_ready(engines.dispatcher.outage.has_peer and not servicer.callee.is_draining)


async def _drain(server: RpcServer, servicer: TextServicer) -> None:
    server.set_ready(False)
    await servicer.callee.drain()


async def _stop(server: RpcServer, servicer: TextServicer, rendering: ChatRendering, tracing: Tracing) -> None:
    await servicer.callee.close_streams()
    await server.stop()
    await rendering.close()
    servicer.stop()
    await asyncio.to_thread(tracing.stop)
