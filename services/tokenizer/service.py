"""The tokenizer process: streams from shims above, engine links below, and the work in between off the event loop."""

import asyncio
import functools
import json
import logging
from collections.abc import Callable
from typing import Any

import grpc

from services.model_files.resolve import resolve
from services.options.declarations import TokenizerOptions
from services.process.shell import begin, run_until_stopped, to_the_end
from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError, invalid, too_long
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2, text_pb2_grpc
from services.rpc.hello import HelloMismatch, make_hello
from services.rpc.session import Attempts, Callee
from services.rpc.start_lock import CallerKey
from services.rpc.telemetry import LinkMessages
from services.rpc.transport import RpcServer
from services.security.secret import cluster_secret
from services.telemetry.logs import RateLimitedLog
from services.telemetry.metrics_server import new_registry, open_metrics_server
from services.telemetry.spans import Span, Tracing
from services.telemetry.tracing import set_up_tracing
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.mailbox import TextMailbox
from services.tokenizer.render import ChatTemplate, find_template, special_tokens
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.text_request import TextRequest, refuse
from services.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)
MAX_MODEL_LEN = 2**32 - 1  # before any engine has said what it is
INLINE_CHARACTERS = 2000  # longer texts are rendered and encoded in a thread, so that the event loop goes on


class TextServicer(text_pb2_grpc.TextServiceServicer):
    def __init__(
        self,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        engines: EngineClient,
        hello: pb.Hello,
        observer: TokenizerTelemetry,
    ) -> None:
        self.observer = observer
        self._vocabulary = vocabulary
        self._template = template
        self._engines = engines
        self._hello = hello
        self._attempts = Attempts()
        self.callee = Callee()
        self.repeats = RateLimitedLog(log, logging.WARNING)
        self._sessions: set[_Session] = set()

    async def Connect(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """One shim's stream; its requests are aborted when it ends."""
        try:
            await asyncio.shield(self._engines.dispatcher.first_link)
        except asyncio.CancelledError:
            return  # this process stops, or the caller gave up; grpc would print a traceback
        hello = pb.Hello()
        hello.CopyFrom(self._hello)
        if self._engines.dispatcher.peer is not None:
            hello.engine.CopyFrom(self._engines.dispatcher.peer.engine)
        session = _Session(self, TextMailbox(hello.epoch))
        self._sessions.add(session)
        try:
            await self.callee.serve_stream(context, hello, ("shim",), session.mailbox, session.opened, text_pb2.TextUp)
        finally:
            self._sessions.discard(session)
            session.close()

    async def HoldStartLock(self, request: pb.Hello, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Granted once every prompt that is here has been encoded."""

        async def encoded() -> None:
            tasks = [task for session in self._sessions for task in session.starting]
            await asyncio.gather(*tasks, return_exceptions=True)

        await self.callee.start_lock.hold(request, context, encoded)

    async def ResetPrefixCache(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            await self._engines.reset_prefix_cache()
        except TandemError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, error.message)
        return pb.ResetPrefixCacheResponse()

    def stop(self) -> None:
        """This process stops: what still runs leaves its spans behind, whatever its stream's end does later."""
        for session in self._sessions:
            session.close()

    async def encode(self, submit: text_pb2.TextSubmit) -> list[int]:
        """The prompt's token ids. Raises TandemError when the input is not usable."""
        kind = submit.WhichOneof("input")
        if kind == "prompt_token_ids":
            return unpack_u32(submit.prompt_token_ids)
        if kind == "chat":
            text, special = await self._rendered(submit.chat), False
        elif kind == "text":
            text, special = submit.text.text, submit.text.add_special_tokens
        else:
            raise invalid("the request has no input", "prompt")
        longest, limit = self._vocabulary.max_token_bytes, self.max_model_len
        if longest is not None and len(text) // longest >= limit:
            raise too_long(len(text) // longest, limit, at_least=True)
        if len(text) <= INLINE_CHARACTERS:
            return self._vocabulary.encode(text, add_special_tokens=special)
        return await asyncio.to_thread(self._vocabulary.encode, text, add_special_tokens=special)

    @property
    def max_model_len(self) -> int:
        peer = self._engines.dispatcher.peer
        return peer.engine.max_model_len if peer is not None else MAX_MODEL_LEN

    async def _rendered(self, chat: text_pb2.ChatInput) -> str:
        size = len(chat.messages_json) + len(chat.tools_json) + len(chat.template_kwargs_json)
        return self._render(chat) if size <= INLINE_CHARACTERS else await asyncio.to_thread(self._render, chat)

    def _render(self, chat: text_pb2.ChatInput) -> str:
        return self._template.render(
            json.loads(chat.messages_json),
            json.loads(chat.tools_json) if chat.tools_json else None,
            json.loads(chat.template_kwargs_json) if chat.template_kwargs_json else {},
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )

    def request(self, submit: text_pb2.TextSubmit, prompt: list[int], session: "_Session", span: Span) -> TextRequest:
        return TextRequest(submit, prompt, self._vocabulary, session.mailbox, self._engines, session, span)

    @property
    def attempts(self) -> Attempts:
        return self._attempts


class _Session:
    """One shim's open choices, by its handles."""

    def __init__(self, servicer: TextServicer, mailbox: TextMailbox) -> None:
        self.mailbox = mailbox
        self._servicer = servicer
        self._caller = pb.Hello()
        self._open: dict[int, int] = {}  # handle -> attempt
        self._requests: dict[int, TextRequest] = {}
        self.starting: set[asyncio.Task[None]] = set()

    def opened(self, caller: pb.Hello) -> Callable[[text_pb2.TextEntry], None]:
        self._caller = caller
        return self._receive

    def close(self) -> None:
        for handle in list(self._open):
            self._abort(handle)

    def _receive(self, entry: text_pb2.TextEntry) -> None:
        if entry.HasField("submit"):
            submit = entry.submit
            for choice in list(submit.choices):
                abort = functools.partial(self._abort, choice.handle)
                if not self._servicer.attempts.claim(self._key(choice.handle), submit.attempt, abort):
                    self._servicer.repeats.log("dropped an attempt that is not the newest")
                    submit.choices.remove(choice)
                    continue
                self._open[choice.handle] = submit.attempt
            handles = (choice.handle for choice in submit.choices)
            submit.alone = submit.alone and self._servicer.callee.start_lock.start_alone(self._caller, handles)
            task = asyncio.create_task(self._start(submit))
            self.starting.add(task)
            task.add_done_callback(self.starting.discard)
        elif entry.HasField("abort"):
            self._abort(entry.abort.handle)

    async def _start(self, submit: text_pb2.TextSubmit) -> None:
        observer = self._servicer.observer
        span = observer.tracing.start("tokenizer.request", submit.traceparent)
        try:
            with observer.encoding(span):
                prompt = await self._servicer.encode(submit)
            if len(prompt) >= self._servicer.max_model_len:
                raise too_long(len(prompt), self._servicer.max_model_len)
            for choice in [choice for choice in submit.choices if choice.handle not in self._open]:
                submit.choices.remove(choice)  # given up while the prompt was being encoded
            request = self._servicer.request(submit, prompt, self, span)
            self._requests |= dict.fromkeys((choice.handle for choice in submit.choices), request)
            request.start()
        except TandemError as error:
            self._refuse(submit, error, span)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            self._refuse(submit, invalid(f"the request cannot be read: {error}"), span)
        except Exception:  # whatever it is, it ends this request alone, and nobody waits for it for ever
            log.exception("request %s", submit.request_id)
            self._refuse(submit, TandemError("INTERNAL", "the tokenizer failed at this request"), span)

    def _refuse(self, submit: text_pb2.TextSubmit, error: TandemError, span: Span) -> None:
        span.end(error=error.code)
        handles = [choice.handle for choice in submit.choices if choice.handle in self._open]
        refuse(handles, error, self.mailbox)
        for handle in handles:
            self.ended(handle)

    def _abort(self, handle: int) -> None:
        request = self._requests.get(handle)
        if request is not None:
            request.abort(handle)
        else:
            self.ended(handle)

    def started(self, handle: int) -> None:
        self._servicer.callee.start_lock.on_first_token(self._key(handle))

    def ended(self, handle: int) -> None:
        self._servicer.callee.start_lock.on_end(self._key(handle))
        attempt = self._open.pop(handle, None)
        self._requests.pop(handle, None)
        if attempt is not None:
            self._servicer.attempts.release(self._key(handle), attempt)

    def _key(self, handle: int) -> CallerKey:
        return (self._caller.instance, self._caller.epoch, handle)


def main(options: TokenizerOptions) -> int:
    """Returns the exit status; 0 after SIGTERM or SIGINT."""
    begin("tokenizer", options)
    return run_until_stopped("tokenizer", lambda: serve(options), (HelloMismatch, RuntimeError))


async def serve(options: TokenizerOptions) -> None:
    """Runs until cancelled. Raises Fatal or HelloMismatch when it cannot work with the model or the engine."""
    path = resolve(options.model, options.revision, weights=False)
    vocabulary = Vocabulary(path)
    template = ChatTemplate(find_template(path, options.chat_template), special_tokens(path))
    hello = make_hello("tokenizer", digest=vocabulary.digest)
    secret = cluster_secret(options)
    engines = EngineClient(options.engine, hello, secret)
    server = RpcServer(options.listen, secret)
    registry = new_registry()
    registry.register(LinkMessages(engines.links))
    tracing = set_up_tracing("tokenizer", options.otlp_traces_endpoint)
    servicer = TextServicer(vocabulary, template, engines, hello, TokenizerTelemetry(registry, tracing))
    text_pb2_grpc.add_TextServiceServicer_to_server(servicer, server.grpc)
    with open_metrics_server(options, secret, registry, lambda: engines.dispatcher.connected):
        await server.start()
        log.info("tokenizer loaded")
        try:
            await asyncio.gather(_say_ready(server, engines), *(link.run() for link in engines.links))
        finally:
            await to_the_end(_stop(server, servicer, tracing))


async def _stop(server: RpcServer, servicer: TextServicer, tracing: Tracing) -> None:
    await servicer.callee.close_streams()
    await server.stop()
    servicer.stop()
    await asyncio.to_thread(tracing.stop)


async def _say_ready(server: RpcServer, engines: EngineClient) -> None:
    await engines.dispatcher.first_link
    await server.ready()
