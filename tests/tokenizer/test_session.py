"""A shim's stream at the tokenizer: submits are encoded and sent on, and each error ends its own request alone."""

import asyncio
from typing import Any

import pytest

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.tokenizer import text_request
from tests.clock import Clock
from tests.held_lock import OpenCall, ends
from tests.tokenizer.parts import ids_of
from tests.tokenizer.sessions import CALLER, Tokenizer


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
    (fast,) = stream.session.starting.keys() - {slow}
    await fast
    assert not slow.done()
    assert [unpack_u32(submit.prompt_token_ids) for submit in tokenizer.submitted()] == [ids_of("two")]
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_the_engine_is_told_how_long_a_request_has_waited(clock: Clock) -> None:
    """In the shim, while its prompt was encoded, and while there was no engine."""
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    tokenizer.encoder.gate.clear()
    stream.submit(501, waited_ms=3000)
    await asyncio.sleep(0)
    clock.now += 0.25
    tokenizer.encoder.gate.set()
    await stream.encoded()
    tokenizer.engines.link_down(tokenizer.link, died=True)  # type: ignore[arg-type]
    clock.now += 2
    tokenizer.engines.link_up(tokenizer.link)  # type: ignore[arg-type]
    assert [submit.waited_ms for submit in tokenizer.submitted()] == [3250, 5250]


async def test_the_encoding_of_other_prompts_of_a_message_is_no_part_of_a_requests_wait(clock: Clock) -> None:
    """They are encoded in turn, and reach the engine in one message: the order of the message stays."""
    tokenizer = Tokenizer()
    stream, encode = tokenizer.stream(), tokenizer.encoder.encode

    async def slowly(submit: text_pb2.TextSubmit) -> list[int]:
        clock.now += 0.25
        return await encode(submit)

    tokenizer.encoder.encode = slowly  # type: ignore[method-assign]
    for handle in (501, 502, 503):
        stream.submit(handle)
    await stream.encoded()
    assert [submit.waited_ms for submit in tokenizer.submitted()] == [250] * 3


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


async def test_the_encoding_of_a_request_that_has_no_choice_left_stops() -> None:
    """It may wait for a worker, or hold one for seconds."""
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    tokenizer.encoder.gate.clear()
    stream.submit(501, 502)
    (encoding,) = stream.session.starting
    await asyncio.sleep(0)
    stream.abort(501)
    await asyncio.sleep(0)
    assert not encoding.done()
    stream.abort(502)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await encoding
    assert not stream.session.starting and not tokenizer.submitted() and not stream.errors()
    assert [span.ended[-1][1] for span in tokenizer.tracing.spans if span.name == "tokenizer.request"] == ["CANCELLED"]


async def test_resumed_answers_are_read_again_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a tokenizer's answers come at once after its death: its event loop must run meanwhile, and others too."""
    monkeypatch.setattr(text_request, "MAX_REPLAYED", 2)
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    resumed = pack_u32(ids_of("one two three four five six seven"))
    for handle in (501, 502, 503):
        stream.submit(handle, attempt=2, resumed=resumed)
    stream.submit(504, text="two")
    turns = 0
    while not tokenizer.submitted():
        await asyncio.sleep(0)
        turns += 1
    others = [task for task in stream.session.starting if not task.done()]
    assert turns < len(resumed) // 8 and len(others) == 3, "a new request waits for none of them"
    stream.abort(502)
    await stream.encoded()
    assert [len(submit.choices[0].resumed_token_ids) for submit in tokenizer.submitted()] == [0, *[len(resumed)] * 2]


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


async def test_a_request_waits_for_the_next_engine() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    tokenizer.engines.link_down(tokenizer.link, died=True)  # type: ignore[arg-type]
    stream.submit(501)
    await stream.encoded()
    assert not stream.errors()
    tokenizer.engines.dispatcher.outage._give_up()
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
        assert request._not_started
        request._listener.started(501)
        assert await ends(holding)


async def test_a_submit_alone_without_the_start_lock_is_an_ordinary_one() -> None:
    tokenizer = Tokenizer()
    stream = tokenizer.stream()
    stream.submit(501, alone=True)
    await stream.encoded()
    (request,) = set(stream.session._requests.values())
    assert not request._not_started


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
