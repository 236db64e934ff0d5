"""One shim's stream, or one program's call: its submits become TextRequests, its aborts end them.

A submit is encoded in a task of its own, so that a long prompt delays no other request. An error in one request
becomes the terminal message of each of its choices; the stream goes on.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from services.rpc.callee import Attempts
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.output_limits import check_output
from services.rpc.start_lock import CallerKey, StartLock
from services.rpc.waited import Waited
from services.telemetry.logs import RateLimitedLog
from services.telemetry.spans import Span
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.mailbox import ChoiceMailbox
from services.tokenizer.output_resolver import OutputResolver
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.text_request import TextRequest, put_errors
from services.tokenizer.unreadable import refusing_unreadable
from services.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenizerState:
    """The objects that the sessions of all streams share; one per process."""

    vocabulary: Vocabulary
    encoder: PromptEncoder
    resolver: OutputResolver
    formats: AnswerFormats
    engines: EngineClient
    telemetry: TokenizerTelemetry
    attempts: Attempts
    start_lock: StartLock
    dropped_attempts: RateLimitedLog
    replaying: asyncio.Lock = field(default_factory=asyncio.Lock)  # of resumed tokens: one answer at a time


class Session:
    """The open choices of one stream, by the caller's handles."""

    def __init__(self, state: TokenizerState, mailbox: ChoiceMailbox) -> None:
        self.mailbox = mailbox
        self.starting: dict[asyncio.Task[None], set[int]] = {}  # submits that are being encoded, with their handles
        self._state = state
        self._caller = pb.Hello()
        self._open: dict[int, int] = {}  # handle -> attempt
        self._requests: dict[int, TextRequest] = {}

    def opened(self, caller: pb.Hello) -> Callable[[text_pb2.TextEntry], None]:
        """Keeps the caller's hello; returns the function that handles each entry."""
        self._caller = caller
        return self._receive

    def close(self) -> None:
        """Aborts every open choice."""
        for handle in list(self._open):
            self._abort(handle)

    def _receive(self, entry: text_pb2.TextEntry) -> None:
        if entry.HasField("submit"):
            self._submit(entry.submit)
        elif entry.HasField("abort"):
            self._abort(entry.abort.handle)

    def _submit(self, submit: text_pb2.TextSubmit) -> None:
        for choice in list(submit.choices):
            abort = functools.partial(self._abort, choice.handle)
            if not self._state.attempts.claim(self._key(choice.handle), submit.attempt, abort):
                self._state.dropped_attempts.log("dropped a submit: a newer attempt of its choice is running")
                submit.choices.remove(choice)
                continue
            self._open[choice.handle] = submit.attempt
        handles = {choice.handle for choice in submit.choices}
        submit.alone = submit.alone and self._state.start_lock.start_alone(self._caller, handles)
        task = asyncio.create_task(self._start(submit))
        self.starting[task] = handles
        task.add_done_callback(self.starting.pop)

    async def _start(self, submit: text_pb2.TextSubmit) -> None:
        telemetry = self._state.telemetry
        # Not since the receipt: the submits of one message are encoded in turn and leave in one message. The last one
        # would then seem to have waited longest.
        waited = Waited(submit.waited_ms)
        span = telemetry.tracing.start("tokenizer.request", submit.traceparent)
        try:
            with refusing_unreadable():
                with telemetry.encoding(span):
                    check_output(submit.output)
                    prompt = await self._state.encoder.encode(submit)
                    resolved = await self._state.resolver.resolve(submit, prompt)
                    plan = await self._state.formats.plan_aside(submit.output, prompt)
                vocabulary, engines = self._state.vocabulary, self._state.engines
                request = TextRequest(submit, prompt, resolved, plan, vocabulary, self.mailbox, engines, self, span)
                await request.replay(self._state.replaying)
                submit.waited_ms = waited.ms()
                for choice in [choice for choice in submit.choices if choice.handle not in self._open]:
                    submit.choices.remove(choice)  # aborted meanwhile
                self._requests |= dict.fromkeys((choice.handle for choice in submit.choices), request)
                request.start()
        except asyncio.CancelledError:
            span.end(error="CANCELLED")
            raise
        except TandemError as error:
            self._refuse(submit, error, span)
        except Exception:  # a bug: this request gets its terminal message, the others go on
            log.exception("request %s failed in the tokenizer", submit.request_id)
            self._refuse(submit, TandemError("INTERNAL", "the tokenizer failed at this request"), span)

    def _refuse(self, submit: text_pb2.TextSubmit, error: TandemError, span: Span) -> None:
        span.end(error=error.code)
        handles = [choice.handle for choice in submit.choices if choice.handle in self._open]
        put_errors(handles, error, self.mailbox)
        for handle in handles:
            self.ended(handle)

    def _abort(self, handle: int) -> None:
        request = self._requests.get(handle)
        if request is not None:
            request.abort(handle)
        else:
            self.ended(handle)
            self._stop_encoding(handle)

    def _stop_encoding(self, handle: int) -> None:
        """Cancels the encoding of an aborted choice's submit, if it has no other choice: it may hold a worker."""
        for task, handles in self.starting.items():
            if handle in handles and not handles & self._open.keys():
                task.cancel()

    def started(self, handle: int) -> None:
        """Tells the start lock that a choice of a request that starts alone (a suspect) has its first token."""
        self._state.start_lock.on_start(self._key(handle))

    def ended(self, handle: int) -> None:
        """Forgets a choice that has its terminal message or was aborted, also in the start lock and the attempts."""
        self._state.start_lock.on_start(self._key(handle))
        attempt = self._open.pop(handle, None)
        self._requests.pop(handle, None)
        if attempt is not None:
            self._state.attempts.release(self._key(handle), attempt)

    def parsed(self, num_calls: int, num_broken: int) -> None:
        peer = self._state.engines.dispatcher.peer
        names = peer.engine.served_model_names if peer is not None else ()
        self._state.telemetry.parsed(next(iter(names), ""), num_calls, num_broken)

    def _key(self, handle: int) -> CallerKey:
        return (self._caller.instance, self._caller.epoch, handle)
