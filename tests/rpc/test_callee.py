"""The callee's end of a stream: malformed messages, hellos, and attempts, of which the highest wins."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest

from engine_core.events import NewTokens
from services.engine.generate import TokensMailbox
from services.engine.mailbox import StepMailbox
from services.rpc import callee, pace
from services.rpc.callee import Attempts, Callee
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.generated.text_pb2_grpc import TextServiceStub
from services.rpc.hello import make_hello
from services.rpc.transport import open_channel
from tests.fakes import SERVICE, make_facts
from tests.rpc.pipeline import Pipeline
from tests.rpc.streams import next_accepted, next_terminal, open_stream


class Context:
    """The gRPC context of a caller that sends these messages."""

    def __init__(self, messages: Iterable[Any]) -> None:
        self._messages = iter(messages)

    async def read(self) -> Any:
        return next(self._messages, grpc.aio.EOF)

    async def write(self, message: object) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise grpc.aio.AbortError(code, details)


class Waiting(Context):
    """After its messages it sends no more."""

    def __init__(self, messages: Iterable[Any]) -> None:
        super().__init__(messages)
        self.waits = asyncio.Event()

    async def read(self) -> Any:
        message = await super().read()
        if message is grpc.aio.EOF:
            self.waits.set()
            await asyncio.Event().wait()
        return message


async def serve(callee: Callee, context: Context, receive: Callable[[Any], None] = lambda entry: None) -> None:
    """Serves one stream as an engine does."""
    hello, mailbox = make_hello("engine"), StepMailbox(1, SERVICE)
    await callee.serve_stream(
        context, lambda: hello, ("tokenizer",), mailbox, lambda caller: receive, engine_pb2.EngineUp
    )  # type: ignore[arg-type]


async def test_a_malformed_message_aborts_the_stream_and_leaves_its_traceback_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bug of this process looks like a malformed message: the traceback shows which of the two it is."""
    broken = ValueError("3 bytes are no column")

    def receive(entry: Any) -> None:
        raise broken

    messages = [
        engine_pb2.EngineDown(hello=make_hello("tokenizer")),
        engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(abort=pb.Abort(handle=1))]),
    ]
    with caplog.at_level(logging.DEBUG, "services.rpc.callee"), pytest.raises(grpc.aio.AbortError) as aborted:
        await serve(Callee(), Context(messages), receive)
    assert aborted.value.args == (grpc.StatusCode.INVALID_ARGUMENT, "malformed message: 3 bytes are no column")
    records = [(record.levelname, record.exc_info and record.exc_info[1]) for record in caplog.records]
    assert records == [("WARNING", None), ("DEBUG", broken)]


async def test_a_stream_without_a_hello_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callee, "HELLO_SECONDS", 0.01)

    class SilentContext(Context):
        async def read(self) -> Any:
            await asyncio.Event().wait()

    with pytest.raises(grpc.aio.AbortError) as aborted:
        await serve(Callee(), SilentContext([]))
    assert aborted.value.args[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_renewed_streams_end_in_order_and_new_ones_are_served() -> None:
    renewed = Callee()
    context = Waiting([engine_pb2.EngineDown(hello=make_hello("tokenizer"))])
    serving = asyncio.create_task(serve(renewed, context))
    await context.waits.wait()
    renewed.renew_streams()
    renewed.renew_streams()
    await asyncio.wait_for(serving, 10)
    context = Waiting([engine_pb2.EngineDown(hello=make_hello("tokenizer"))])
    serving = asyncio.create_task(serve(renewed, context))
    await context.waits.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_a_stream_whose_hello_changes_while_it_opens_ends_in_order() -> None:
    """The caller connects again, and has the facts of now."""
    hellos = [make_hello("engine"), make_hello("engine")]
    hellos[1].engine.numerics_id = "another"
    sent, received = [], []

    class Opening(Context):
        async def write(self, message: Any) -> None:
            if message.HasField("hello"):
                sent.append(message.hello.engine.numerics_id)
                hellos.pop(0)

    abort = engine_pb2.EngineEntry(abort=pb.Abort(handle=1))
    messages = [engine_pb2.EngineDown(hello=make_hello("tokenizer"), entries=[abort])]
    for _ in range(2):
        context: Any = Opening(messages)
        await Callee().serve_stream(
            context,
            lambda: hellos[0],
            ("tokenizer",),
            StepMailbox(1, SERVICE),
            lambda caller: received.append,
            engine_pb2.EngineUp,
        )
        hellos.append(hellos[0])
    assert (sent, received) == (["", "another"], [abort])


async def test_a_caller_with_another_role_is_refused() -> None:
    with pytest.raises(grpc.aio.AbortError) as aborted:
        await serve(Callee(), Context([engine_pb2.EngineDown(hello=make_hello("shim"))]))
    assert aborted.value.args == (grpc.StatusCode.FAILED_PRECONDITION, "role tokenizer expected, 'shim' there")


async def test_close_streams_ends_open_streams_in_order() -> None:
    """`serve_stream` returns, which a caller sees as the end of the stream; a failure would look like a death."""
    callee, opened = Callee(), asyncio.Event()

    class OpenContext(Context):
        async def read(self) -> Any:
            message = await super().read()
            if message is grpc.aio.EOF:
                opened.set()
                await asyncio.Event().wait()
            return message

    stream = asyncio.create_task(serve(callee, OpenContext([engine_pb2.EngineDown(hello=make_hello("tokenizer"))])))
    async with asyncio.timeout(10):
        await opened.wait()
        await callee.close_streams()
        await stream


def test_a_higher_attempt_aborts_a_lower_one() -> None:
    attempts, aborted = Attempts(), []
    key = ("tokenizer-1", 5, 1)
    assert attempts.claim(key, 2, lambda: aborted.append(2))
    assert not attempts.claim(key, 2, lambda: aborted.append(2)) and not attempts.claim(key, 1, lambda: None)
    assert aborted == []
    assert attempts.claim(key, 3, lambda: aborted.append(3)) and aborted == [2]
    attempts.release(key, 2)
    assert not attempts.claim(key, 3, lambda: None), "the end of attempt 2 leaves attempt 3 registered"
    attempts.release(key, 3)
    assert attempts.claim(key, 1, lambda: None)


@pytest.fixture
async def pipeline(socket_dir: Path) -> AsyncIterator[Pipeline]:
    async with Pipeline(socket_dir).running() as running:
        yield running


async def test_a_higher_attempt_on_a_new_stream_supersedes_a_lower_one(pipeline: Pipeline) -> None:
    """The caller reconnects before the callee has noticed the end of the old stream."""
    hello = make_hello("tokenizer")
    submit = engine_pb2.Submit(
        request_id="r", attempt=1, prompt_token_ids=bytes([5, 0, 0, 0]), seed=1, choices=[pb.Choice(handle=1)],
        sampling=pb.SamplingParams(max_tokens=200, ignore_eos=True),
    )  # fmt: skip
    async with open_channel(pipeline.engine_address) as channel, asyncio.timeout(20):
        first, second, third = [await open_stream(channel, hello) for _ in range(3)]
        await first.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        await next_accepted(first)
        resumed = engine_pb2.Submit()
        resumed.CopyFrom(submit)
        resumed.attempt = 2
        await second.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=resumed)]))
        assert (await next_terminal(first)).reason == pb.FINISH_REASON_ABORT
        await third.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        finished = await next_terminal(second)
        assert (finished.reason, finished.output_tokens) == (pb.FINISH_REASON_LENGTH, 200)


async def test_a_higher_attempt_on_the_same_stream_takes_over_the_handle(pipeline: Pipeline) -> None:
    """The caller gets one terminal message, of the highest attempt, and its abort ends that attempt."""
    submit = engine_pb2.Submit(
        request_id="r", attempt=1, prompt_token_ids=bytes([5, 0, 0, 0]), seed=1, choices=[pb.Choice(handle=1)],
        sampling=pb.SamplingParams(max_tokens=200, ignore_eos=True),
    )  # fmt: skip
    async with open_channel(pipeline.engine_address) as channel, asyncio.timeout(20):
        stream = await open_stream(channel, make_hello("tokenizer"))
        for attempt in (1, 2):
            submit.attempt = attempt
            await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        terminal = await next_terminal(stream)
        assert (terminal.reason, terminal.output_tokens) == (pb.FINISH_REASON_LENGTH, 200)
        submit.attempt = 3
        await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        submit.attempt = 4
        await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(submit=submit)]))
        await stream.write(engine_pb2.EngineDown(entries=[engine_pb2.EngineEntry(abort=pb.Abort(handle=1))]))
        assert (await next_terminal(stream)).reason == pb.FINISH_REASON_ABORT


async def test_a_handle_twice_in_a_submit_is_one_choice(pipeline: Pipeline) -> None:
    submit = pipeline.submit("Hello!", max_tokens=3)
    submit.attempt = 1
    submit.choices.append(submit.choices[0])
    async with open_channel(pipeline.tokenizer_address) as channel, asyncio.timeout(20):
        stream = TextServiceStub(channel).Connect()
        await stream.write(text_pb2.TextDown(hello=make_hello("shim"), entries=[text_pb2.TextEntry(submit=submit)]))
        terminals: list[text_pb2.TextTerminal] = []
        while not terminals:
            terminals += (await stream.read()).batch.terminals
        assert [terminal.output_tokens for terminal in terminals] == [3]


class Calls:
    """The context of calls: keeps when each response was written, on the event loop's clock."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def write(self, response: object) -> None:
        self.times.append(asyncio.get_running_loop().time())


async def test_all_calls_together_keep_to_a_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four calls together send a message per pause; the first response of a call waits for nothing."""
    monkeypatch.setattr(pace, "RESPONSE_SECONDS", 0.01)
    served = Callee()
    contexts = [Calls() for _ in range(4)]

    async def serve_one(context: Any) -> None:
        responses = TokensMailbox(make_facts(), stream=True)

        def receive(entry: engine_pb2.EngineEntry) -> None:
            putting.append(asyncio.create_task(put_tokens(responses)))

        responses.expect([pb.Choice(handle=0)])
        await served.serve_call(context, responses, lambda caller: receive, engine_pb2.EngineEntry, str)

    async def put_tokens(responses: TokensMailbox) -> None:
        for index in range(100):
            responses.put_tokens(0, NewTokens(0, index, [7], None))
            await asyncio.sleep(0.001)
        responses.put_terminal(engine_pb2.Terminal(handle=0, reason=pb.FINISH_REASON_LENGTH))

    putting: list[asyncio.Task[None]] = []
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        await asyncio.gather(*(serve_one(context) for context in contexts))
    assert all(context.times[0] - began < 0.04 for context in contexts)
    times = sorted(moment for context in contexts for moment in context.times)
    assert len(times) <= (times[-1] - times[0]) / 0.01 + 2 * len(contexts)


async def test_a_process_that_drains_takes_calls_of_programs() -> None:
    """A program may have no other process. A call that has not ended when this one stops resumes at the next one."""
    draining, responses = Callee(), TokensMailbox(make_facts(), stream=True)
    draining.attempts.claim(("shim", 1, 1), 1, lambda: None)
    drain = asyncio.create_task(draining.drain())
    await asyncio.sleep(0)
    assert draining.is_draining and not drain.done()

    def receive(entry: engine_pb2.EngineEntry) -> None:
        responses.put_terminal(engine_pb2.Terminal(handle=0, reason=pb.FINISH_REASON_LENGTH))

    responses.expect([pb.Choice(handle=0)])
    async with asyncio.timeout(10):
        await draining.serve_call(Context([]), responses, lambda caller: receive, engine_pb2.EngineEntry, str)  # type: ignore[arg-type]
        assert responses.is_done
        draining.attempts.release(("shim", 1, 1), 1)
        await drain


async def test_a_process_that_stops_takes_no_more_calls() -> None:
    """UNAVAILABLE sends a program to another process; a call that was let in would end with CANCELLED."""
    stopping = Callee()
    await stopping.close_streams()
    with pytest.raises(grpc.aio.AbortError) as aborted:
        responses = TokensMailbox(make_facts(), stream=True)
        await stopping.serve_call(Context([]), responses, lambda caller: print, engine_pb2.EngineEntry, str)  # type: ignore[arg-type]
    assert aborted.value.args == (grpc.StatusCode.UNAVAILABLE, "the process is stopping")
