"""Sessions of a tokenizer without its processes: a test plays the shims and the engine."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

import demo
from services.rpc.callee import Attempts
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.start_lock import StartLock
from services.telemetry.logs import RateLimitedLog
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.mailbox import TextMailbox
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.session import Session, TokenizerState
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.vocabulary import Vocabulary
from tests.fakes import SERVICE
from tests.telemetry.fake_tracing import FakeTracing
from tests.tokenizer.parts import answer_formats, connected, inline_rendering, output_resolver

VOCABULARY = Vocabulary(demo.CHECKPOINT)
CALLER = make_hello("shim")


class GatedEncoder(PromptEncoder):
    """Encodes once the test opens the gate."""

    def __init__(self, engines: EngineClient) -> None:
        super().__init__(VOCABULARY, inline_rendering("{{ messages[0].content }}"), engines)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0  # calls that have come to the gate

    def for_any_length(self) -> "GatedEncoder":
        return self

    async def encode(self, submit: text_pb2.TextSubmit) -> list[int]:
        self.waiting += 1
        await self.gate.wait()
        return await super().encode(submit)


class Tokenizer:
    """Sessions of one tokenizer with one engine; `link` keeps the entries sent to it."""

    def __init__(self) -> None:
        self.engines, self.link = connected()
        self.encoder, self.tracing, self.registry = GatedEncoder(self.engines), FakeTracing(), CollectorRegistry()
        self.state = TokenizerState(
            VOCABULARY,
            self.encoder,
            output_resolver(self.engines, answer_formats("hermes", "qwen3")),
            answer_formats("hermes", "qwen3"),
            self.engines,
            TokenizerTelemetry(self.registry, self.tracing),
            Attempts(),
            StartLock(),
            RateLimitedLog(logging.getLogger(__name__), logging.WARNING),
        )

    def stream(self) -> "Stream":
        return Stream(Session(self.state, TextMailbox(1, SERVICE)))

    def submitted(self) -> list[engine_pb2.Submit]:
        return [entry.submit for entry in self.link.entries if entry.HasField("submit")]


class Stream:
    def __init__(self, session: Session) -> None:
        self.session = session
        self._receive: Callable[[text_pb2.TextEntry], None] = session.opened(CALLER)

    def submit(self, *handles: int, text: str = "one", resumed: bytes = b"", **fields: Any) -> None:
        choices = [pb.Choice(handle=handle, resumed_token_ids=resumed) for handle in handles]
        if "chat" not in fields:
            fields["text"] = text_pb2.TextInput(text=text)
        submit = text_pb2.TextSubmit(choices=choices, **{"attempt": 1, "request_id": "r1", **fields})
        self._receive(text_pb2.TextEntry(submit=submit))

    def abort(self, handle: int) -> None:
        self._receive(text_pb2.TextEntry(abort=pb.Abort(handle=handle)))

    async def encoded(self) -> None:
        """Waits until every submit has been sent on, refused, or dropped because it was aborted."""
        async with asyncio.timeout(10):
            ended = await asyncio.gather(*self.session.starting, return_exceptions=True)
        for error in ended:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    def errors(self) -> list[tuple[int, str, str]]:
        terminals = self.session.mailbox.take().batch.terminals
        assert all(one.reason == pb.FINISH_REASON_ERROR for one in terminals)
        return [(one.handle, one.error.code, one.error.message) for one in terminals]
