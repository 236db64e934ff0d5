"""The tokenizer's gRPC service: one Session per shim's stream or program's call, tools for programs and shims, facts,
stats, the start lock, the prefix cache's reset.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import grpc

from services.rpc.callee import Callee
from services.rpc.errors import unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2, text_pb2_grpc
from services.rpc.hello import model_info
from services.rpc.program_request import check_numerics, field_of, traceparent_of
from services.rpc.status import abort, answered
from services.telemetry.logs import RateLimitedLog
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.generate import TextResponses, text_entry
from services.tokenizer.mailbox import ChoiceMailbox, TextMailbox
from services.tokenizer.model_archive import ModelArchive
from services.tokenizer.output_resolver import OutputResolver
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.session import Session, TokenizerState
from services.tokenizer.shim_tools import ShimTools
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.text_tools import TextTools
from services.tokenizer.tokenizer_config import tokenizer_config
from services.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)


class TextServicer(text_pb2_grpc.TextServiceServicer):
    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: PromptEncoder,
        engines: EngineClient,
        hello: pb.Hello,
        telemetry: TokenizerTelemetry,
        info: pb.ModelInfo,
        archive: ModelArchive,
        formats: AnswerFormats,
        resolver: OutputResolver,
    ) -> None:
        """`hello` is sent to each shim, `info` to each program, together with the facts of the engine."""
        self.callee = Callee()
        dropped_attempts = RateLimitedLog(log, logging.WARNING)
        self._state = TokenizerState(
            vocabulary,
            encoder,
            resolver,
            formats,
            engines,
            telemetry,
            self.callee.attempts,
            self.callee.start_lock,
            dropped_attempts,
        )
        self._engines = engines
        self._hello = hello
        self._info = info
        self._archive = archive
        self._tools = TextTools(vocabulary, encoder)
        self._shim_tools = ShimTools(vocabulary, encoder)
        self._sessions: set[Session] = set()

    async def Connect(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one shim's stream, once a first engine has connected. When the stream ends, its requests are aborted."""
        try:
            await asyncio.shield(self._engines.dispatcher.first_link)
        except asyncio.CancelledError:
            return  # the process stops or the caller hung up; grpc would print a traceback
        mailbox = TextMailbox(self._hello.epoch, self)
        with self._session(mailbox) as session:
            await self.callee.serve_stream(
                context, self._hello_now, ("shim",), mailbox, session.opened, text_pb2.TextUp
            )

    async def Generate(
        self, request: text_pb2.GenerateTextRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Runs one program's request. When the call ends, its choices are aborted.

        The status is RESOURCE_EXHAUSTED, with RetryInfo, until an engine has connected.
        """
        peer = self._engines.dispatcher.peer
        if peer is None:
            await abort(context, unavailable("no engine has connected to this tokenizer yet; try again"))
        mailbox = TextResponses(stream=request.stream)

        def entry() -> text_pb2.TextEntry:
            check_numerics(request, peer.engine.numerics_id)
            limits = peer.engine.limits.max_n, peer.engine.max_model_len
            made = text_entry(request, traceparent_of(context), *limits)
            mailbox.expect(made.submit.choices)
            return made

        with self._session(mailbox) as session:
            await self.callee.serve_call(context, mailbox, session.opened, entry, functools.partial(field_of, request))

    async def Tokenize(self, request: text_pb2.TokenizeRequest, context: Any) -> text_pb2.TokenizeResponse:
        with self.callee.short_call():
            return await answered(context, self._tools.tokenize(request), functools.partial(field_of, request))

    async def Detokenize(self, request: text_pb2.DetokenizeRequest, context: Any) -> text_pb2.DetokenizeResponse:
        with self.callee.short_call():
            return await answered(context, self._tools.detokenize(request), functools.partial(field_of, request))

    async def Render(self, request: text_pb2.RenderRequest, context: Any) -> text_pb2.RenderResponse:
        with self.callee.short_call():
            return await answered(context, self._tools.render(request), functools.partial(field_of, request))

    async def Encode(self, request: text_pb2.EncodeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.callee.worked()
        with self.callee.short_call():
            async for piece in self._shim_tools.encode(request):
                await context.write(piece)

    async def Decode(self, request: text_pb2.DecodeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.callee.worked()
        with self.callee.short_call():
            async for piece in self._shim_tools.decode(request):
                await context.write(piece)

    async def GetTokenizerConfig(self, request: Any, context: Any) -> text_pb2.TokenizerConfig:
        config = await asyncio.to_thread(tokenizer_config, self._archive.path, self._archive.template)
        return text_pb2.TokenizerConfig(config_json=config)

    async def GetModelInfo(self, request: Any, context: Any) -> pb.ModelInfo:
        info = model_info(self._hello_now())
        info.MergeFrom(self._info)
        return info

    async def GetStats(self, request: Any, context: Any) -> text_pb2.AllEngineStats:
        return text_pb2.AllEngineStats(engines=await self._engines.stats())

    async def GetTokenizer(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        for piece in await asyncio.to_thread(self._archive.pieces):
            await context.write(piece)

    def is_ready(self) -> bool:
        """Returns whether a token could be made now."""
        return self._engines.dispatcher.is_ready and not self.callee.is_draining

    def is_served(self) -> bool:
        """Returns whether new requests are accepted: an engine has a worker, or is expected to have one soon."""
        return self._engines.dispatcher.is_served

    def is_healthy(self) -> bool:
        return self.is_served() and not self.callee.is_draining

    def _hello_now(self) -> pb.Hello:
        """Returns this process's hello with the facts of the engine that connected last, if there is one."""
        hello = pb.Hello()
        hello.CopyFrom(self._hello)
        if self._engines.dispatcher.peer is not None:
            hello.engine.CopyFrom(self._engines.dispatcher.peer.engine)
        return hello

    @contextlib.contextmanager
    def _session(self, mailbox: ChoiceMailbox) -> Iterator[Session]:
        """Provides the session of a stream or call; its choices are aborted at the end."""
        session = Session(self._state, mailbox)
        self._sessions.add(session)
        try:
            yield session
        finally:
            self._sessions.discard(session)
            session.close()

    async def HoldStartLock(self, request: pb.Hello, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Grants the start lock to the calling shim, in its turn. Returns when the grant or the call ends.

        The grant begins once the prompts received so far are encoded and submitted.
        """

        async def encoded() -> None:
            tasks = [task for session in self._sessions for task in session.starting]
            if tasks:
                await asyncio.wait(tasks)  # a cancelled `gather` would cancel them: they are other callers'

        await self.callee.start_lock.hold(request, context, encoded)

    async def ResetPrefixCache(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await answered(context, self._engines.reset_prefix_cache())
        return pb.ResetPrefixCacheResponse()

    def stop(self) -> None:
        """Aborts all open choices, which ends the spans of encoded requests. Call it before tracing stops."""
        for session in self._sessions:
            session.close()
