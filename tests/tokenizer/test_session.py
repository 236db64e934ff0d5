"""A shim's stream at the tokenizer: submits are encoded and sent on, and each error ends its own request alone."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import demo
from services.rpc.call import Call
from services.rpc.callee import Attempts
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.hello import make_hello
from services.rpc.pieces import CONTENT, Piece, add_pieces, unpacked
from services.rpc.start_lock import StartLock
from services.telemetry.logs import RateLimitedLog
from services.tokenizer.chat_renderer import ChatRenderer
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.mailbox import TextMailbox
from services.tokenizer.output_resolver import OutputResolver
from services.tokenizer.prompt_encoder import PromptEncoder
from services.tokenizer.session import Session, TokenizerState
from services.tokenizer.telemetry import TokenizerTelemetry
from services.tokenizer.vocabulary import Vocabulary
from tests.held_lock import OpenCall, ends
from tests.telemetry.fake_tracing import FakeTracing
from tests.tokenizer.parts import connected, ids_of, rows_of

VOCABULARY = Vocabulary(demo.CHECKPOINT)
CALLER = make_hello("shim")


class GatedEncoder(PromptEncoder):
    """Encodes once the test opens the gate."""

    def __init__(self, engines: EngineClient) -> None:
        super().__init__(VOCABULARY, ChatRenderer("{{ messages[0].content }}", {}), engines)
        self.gate = asyncio.Event()
        self.gate.set()

    async def encode(self, submit: text_pb2.TextSubmit) -> list[int]:
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
            OutputResolver(VOCABULARY, self.engines),
            self.engines,
            TokenizerTelemetry(self.registry, self.tracing),
            Attempts(),
            StartLock(),
            RateLimitedLog(logging.getLogger(__name__), logging.WARNING),
        )

    def stream(self) -> "Stream":
        return Stream(Session(self.state, TextMailbox(1)))

    def submitted(self) -> list[engine_pb2.Submit]:
        return [entry.submit for entry in self.link.entries if entry.HasField("submit")]


class Stream:
    def __init__(self, session: Session) -> None:
        self.session = session
        self._receive: Callable[[text_pb2.TextEntry], None] = session.opened(CALLER)

    def submit(self, *handles: int, text: str = "one", **fields: Any) -> None:
        choices = [pb.Choice(handle=handle) for handle in handles]
        if "chat" not in fields:
            fields["text"] = text_pb2.TextInput(text=text)
        submit = text_pb2.TextSubmit(choices=choices, **{"attempt": 1, "request_id": "r1", **fields})
        self._receive(text_pb2.TextEntry(submit=submit))

    def abort(self, handle: int) -> None:
        self._receive(text_pb2.TextEntry(abort=pb.Abort(handle=handle)))

    async def encoded(self) -> None:
        """Waits until every submit has been sent on or refused."""
        async with asyncio.timeout(10):
            await asyncio.gather(*self.session.starting)

    def errors(self) -> list[tuple[int, str, str]]:
        terminals = self.session.mailbox.take().batch.terminals
        assert all(one.reason == pb.FINISH_REASON_ERROR for one in terminals)
        return [(one.handle, one.error.code, one.error.message) for one in terminals]


async def test_a_submit_is_encoded_and_sent_to_the_engine() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    stream.submit(501, 502, text="one two", traceparent="above")
    await stream.encoded()
    (submit,) = tokenizer.submitted()
    assert unpack_u32(submit.prompt_token_ids) == ids_of("one two")
    assert len(submit.choices) == 2
    request, encode = tokenizer.tracing.spans
    assert [(request.name, request.parent), (encode.name, encode.parent)] == [
        ("tokenizer.request", "above"),
        ("tokenizer.encode", request.traceparent),
    ]
    assert (submit.traceparent, encode.ended, request.ended) == (request.traceparent, [(None, "")], [])
    assert tokenizer.registry.get_sample_value("tandem:tokenizer_encode_seconds_count") == 1


async def test_a_long_prompt_does_not_delay_the_requests_behind_it() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    tokenizer.encoder.gate.clear()
    stream.submit(501)
    (slow,) = stream.session.starting
    await asyncio.sleep(0)
    tokenizer.encoder.gate = asyncio.Event()
    tokenizer.encoder.gate.set()
    stream.submit(502, text="two")
    (fast,) = stream.session.starting - {slow}
    await fast
    assert not slow.done()
    assert [unpack_u32(submit.prompt_token_ids) for submit in tokenizer.submitted()] == [ids_of("two")]
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_choices_aborted_while_the_prompt_is_encoded_are_not_submitted() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    tokenizer.encoder.gate.clear()
    stream.submit(501, 502)
    stream.submit(503)
    stream.abort(501)
    stream.abort(503)
    tokenizer.encoder.gate.set()
    await stream.encoded()
    assert [len(submit.choices) for submit in tokenizer.submitted()] == [1]
    assert not stream.errors()


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no json": ({"chat": text_pb2.ChatInput(messages_json=b"[")}, "INVALID_ARGUMENT", "the request cannot be read"),
    "no messages": ({"chat": text_pb2.ChatInput(messages_json=b"[]")}, "INVALID_ARGUMENT", "the chat template refuses"),
    "no object": ({"chat": text_pb2.ChatInput(messages_json=b"7")}, "INVALID_ARGUMENT", "the request cannot be read"),
    "too long": ({"text": "word " * 100}, "INVALID_ARGUMENT", "maximum context length is 64"),
}


@pytest.mark.parametrize(("fields", "code", "message"), BAD.values(), ids=BAD)
async def test_a_request_that_cannot_be_encoded_gets_an_error_and_the_stream_goes_on(
    fields: dict[str, Any], code: str, message: str
) -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    stream.submit(501, 502, **fields)
    await stream.encoded()
    errors = stream.errors()
    assert [(handle, found) for handle, found, _ in errors] == [(501, code), (502, code)]
    assert all(message in text for _, _, text in errors)
    assert tokenizer.tracing.spans[0].ended == [(None, code)]
    stream.submit(501)
    await stream.encoded()
    assert len(tokenizer.submitted()) == 1, "handle and attempt are free again"


async def test_a_bug_ends_its_request_alone_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()

    async def broken(submit: text_pb2.TextSubmit) -> list[int]:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer.encoder, "encode", broken)
        stream.submit(501)
        await stream.encoded()
    assert stream.errors() == [(501, "INTERNAL", "the tokenizer failed at this request")]
    assert "request r1 failed in the tokenizer" in caplog.text and "ZeroDivisionError: a bug" in caplog.text
    stream.submit(502)
    await stream.encoded()
    assert len(tokenizer.submitted()) == 1


async def test_without_an_engine_a_request_is_refused() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    tokenizer.engines.link_down(tokenizer.link, died=True)  # type: ignore[arg-type]
    stream.submit(501)
    await stream.encoded()
    assert [(handle, code) for handle, code, _ in stream.errors()] == [(501, "UNAVAILABLE")]


async def test_a_closed_stream_aborts_its_choices_at_the_engine() -> None:
    tokenizer = Tokenizer()
    first, second = tokenizer.stream(), tokenizer.stream()
    first.submit(501)
    second.submit(502)
    await first.encoded()
    await second.encoded()
    tokenizer.link.entries.clear()
    first.session.close()
    assert [entry.abort.handle for entry in tokenizer.link.entries] == [1]
    assert tokenizer.tracing.spans[0].ended


async def test_a_newer_attempt_aborts_the_older_one_and_an_older_one_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = Tokenizer()
    older, newer = tokenizer.stream(), tokenizer.stream()
    older.submit(501, attempt=1)
    await older.encoded()
    newer.submit(501, attempt=2)
    await newer.encoded()
    assert [entry.abort.handle for entry in tokenizer.link.entries if entry.HasField("abort")] == [1]
    assert len(tokenizer.submitted()) == 2
    older.submit(501, attempt=1)
    await older.encoded()
    assert len(tokenizer.submitted()) == 2
    assert "a newer attempt of its choice is running" in caplog.text


async def test_a_suspects_first_token_ends_the_grant_of_the_start_lock() -> None:
    tokenizer, context = Tokenizer(), OpenCall()
    stream = tokenizer.stream()
    holding = asyncio.create_task(tokenizer.state.start_lock.hold(CALLER, context))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await context.granted.wait()
        stream.submit(501, alone=True)
        await stream.encoded()
        (request,) = set(stream.session._requests.values())
        assert request._alone
        request._listener.started(501)
        assert await ends(holding)


async def test_a_submit_alone_without_the_start_lock_is_an_ordinary_one() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    stream.submit(501, alone=True)
    await stream.encoded()
    (request,) = set(stream.session._requests.values())
    assert not request._alone


async def test_an_ended_choice_frees_its_handle() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    stream.submit(501)
    await stream.encoded()
    terminal = engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_LENGTH)
    step = engine_pb2.StepBatch(epoch=5, terminals=[terminal])
    tokenizer.engines.receive(tokenizer.link, engine_pb2.EngineUp(step=step))  # type: ignore[arg-type]
    assert [one.handle for one in stream.session.mailbox.take().batch.terminals] == [501]
    stream.submit(501, prompt_token_ids=pack_u32([7]))
    await stream.encoded()
    assert len(tokenizer.submitted()) == 2


class Shim(Call[text_pb2.TextSubmit]):
    """A shim's call, which keeps what a resume needs, and folds the pieces of its first choice."""

    def __init__(self, submit: text_pb2.TextSubmit) -> None:
        super().__init__(submit)
        self.pieces: list[Piece] = []
        self.ended = False

    def fail(self, error: TandemError) -> None:
        raise AssertionError(error)

    def attempt(self, stream: Stream) -> text_pb2.TextSubmit:
        """Submits the call on this stream; returns the submit."""
        submit: text_pb2.TextSubmit = self.next_submit(alone=False, on_first_token=lambda: None)
        stream._receive(text_pb2.TextEntry(submit=submit))
        return submit

    def read(self, stream: Stream) -> None:
        """Takes the stream's next message."""
        batch = stream.session.mailbox.take().batch
        for accepted in batch.accepted:
            self.record_accepted(accepted)
        for row in rows_of(batch):
            self.record_tokens(row.handle, row.start_index, pack_u32(row.token_ids))
            add_pieces(self.pieces, row.pieces)
        for terminal in batch.terminals:
            assert terminal.reason == pb.FINISH_REASON_LENGTH, terminal
            add_pieces(self.pieces, unpacked(terminal.pieces, terminal.piece_kinds))
            self.ended = True


def engine_step(ids: list[int], start: int, **more: Any) -> engine_pb2.EngineUp:
    return engine_pb2.EngineUp(
        step=engine_pb2.StepBatch(
            epoch=5,
            handles=pack_u32([1]),
            start_indices=pack_u32([start]),
            counts=pack_u32([len(ids)]),
            token_ids=pack_u32(ids),
            logprob_widths=pack_u32([0]),
            **more,
        )
    )


WORDS = " ".join(f"word{index}" for index in range(50))
RESUMED: dict[str, dict[str, Any]] = {
    "bad words": {"output": text_pb2.OutputSpec(bad_words=["the", "🙂"])},
    "truncation": {"text": WORDS, "truncation": text_pb2.Truncation(max_tokens=9)},
    "truncation of a chat": {
        "chat": text_pb2.ChatInput(messages_json=json.dumps([{"role": "user", "content": WORDS}]).encode()),
        "truncation": text_pb2.Truncation(drop_end=True),
        "sampling": pb.SamplingParams(max_tokens=20),
    },
    "token ids": {"prompt_token_ids": pack_u32([7, 8, 9] * 40), "truncation": text_pb2.Truncation(max_tokens=7)},
    "spaces and stop": {"output": text_pb2.OutputSpec(stop=["x y"], spaces_between_special_tokens=False)},
}


@pytest.mark.parametrize("cut", [0, 1, 4])
@pytest.mark.parametrize("fields", RESUMED.values(), ids=RESUMED)
async def test_a_resumed_request_reaches_the_engine_and_the_shim_as_before(fields: dict[str, Any], cut: int) -> None:
    """The shim's tokenizer dies after `cut` tokens; another one, with another engine, goes on."""
    ids = ids_of("one 🙂 two <|im_end|>x")
    answers, prompts, bad_words = [], [], []
    for death in (None, cut):
        more = dict(fields)
        if "chat" not in more and "prompt_token_ids" not in more:
            more["text"] = text_pb2.TextInput(text=more.get("text", "one"))
        shim = Shim(text_pb2.TextSubmit(request_id="r", choices=[pb.Choice(handle=501)], **more))
        start = 0
        for upto in [death, len(ids)] if death is not None else [len(ids)]:
            tokenizer = Tokenizer()
            tokenizer.link.peer.engine.vocab_size = 2**16
            stream = tokenizer.stream()
            submit = shim.attempt(stream)
            await stream.encoded()
            (engine,) = tokenizer.submitted()
            prompts.append(unpack_u32(engine.prompt_token_ids))
            bad_words.append(list(engine.sampling.bad_words_token_ids))
            assert unpack_u32(engine.choices[0].resumed_token_ids) == ids[:start]
            ended = [engine_pb2.Terminal(handle=1, reason=pb.FINISH_REASON_LENGTH)] if upto == len(ids) else []
            accepted = [engine_pb2.Accepted(handle=1, seed=3)]
            step = engine_step(ids[start:upto], start, accepted=accepted, terminals=ended)
            tokenizer.engines.receive(tokenizer.link, step)  # type: ignore[arg-type]
            shim.read(stream)
            start = upto
        assert shim.ended
        answers.append(shim.pieces)
    assert submit.WhichOneof("input") == "prompt_token_ids" and submit.output == shim._submit.output
    assert submit.HasField("resolved") == bool(bad_words[0])
    assert prompts[1:] == [prompts[0]] * 2 and bad_words[1:] == [bad_words[0]] * 2
    assert answers[0] == answers[1]
    assert answers[0] == [(CONTENT, "one 🙂 two x")]


async def test_a_bad_word_without_tokens_is_refused_and_the_stream_goes_on() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    stream.submit(501, output=text_pb2.OutputSpec(bad_words=["x", " "]))
    await stream.encoded()
    ((handle, code, message),) = stream.errors()
    assert (handle, code) == (501, "INVALID_ARGUMENT") and "bad_words[1] has no tokens" in message
    stream.submit(501)
    await stream.encoded()
    assert len(tokenizer.submitted()) == 1
