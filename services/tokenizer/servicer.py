"""The tokenizer's gRPC service: one Session per shim's stream, the start lock, the prefix cache's reset."""

import asyncio
import logging
from typing import Any

import grpc

from services.rpc.callee import Attempts, Callee
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2, text_pb2_grpc
from services.telemetry.logs import RateLimitedLog
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.mailbox import TextMailbox
from services.tokenizer.output_resolver import OutputResolver
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.session import Session, TokenizerState
from services.tokenizer.telemetry import TokenizerTelemetry
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
    ) -> None:
        """`hello` is sent to each shim, together with the facts of the engine."""
        self.callee = Callee()
        dropped_attempts = RateLimitedLog(log, logging.WARNING)
        self._state = TokenizerState(
            vocabulary,
            encoder,
            OutputResolver(vocabulary, engines),
            engines,
            telemetry,
            Attempts(),
            self.callee.start_lock,
            dropped_attempts,
        )
        self._engines = engines
        self._hello = hello
        self._sessions: set[Session] = set()

    async def Connect(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Runs one shim's stream, once a first engine has connected. When the stream ends, its requests are aborted."""
        try:
            await asyncio.shield(self._engines.dispatcher.first_link)
        except asyncio.CancelledError:
            return  # the process stops or the caller hung up; grpc would print a traceback
        hello = pb.Hello()
        hello.CopyFrom(self._hello)
        if self._engines.dispatcher.peer is not None:
            hello.engine.CopyFrom(self._engines.dispatcher.peer.engine)
        session = Session(self._state, TextMailbox(hello.epoch))
        self._sessions.add(session)
        try:
            await self.callee.serve_stream(context, hello, ("shim",), session.mailbox, session.opened, text_pb2.TextUp)
        finally:
            self._sessions.discard(session)
            session.close()

    async def HoldStartLock(self, request: pb.Hello, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Grants the start lock to the calling shim, in its turn. Returns when the grant or the call ends.

        The grant begins once the prompts received so far are encoded and submitted.
        """

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
        """Aborts all open choices, which ends the spans of encoded requests. Call it before tracing stops."""
        for session in self._sessions:
            session.close()
