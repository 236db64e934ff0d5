"""Mailboxes merge pending entries: a slow reader gets few large messages and delays no other stream."""

import asyncio

from engine_core.events import Logprobs, NewTokens
from services.engine.mailbox import StepMailbox
from services.rpc.columns import unpack_f32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.mailbox import MAX_MERGED_BYTES, EntryMailbox
from services.tokenizer.mailbox import TextMailbox
from tests.fakes import SERVICE


def test_tokens_of_one_choice_merge_into_one_row() -> None:
    mailbox = StepMailbox(9, SERVICE)
    for index in range(5):
        mailbox.put_tokens(1, NewTokens(11, index, [100 + index], Logprobs(2, [7, 8], [-0.5, -1.5])))
        mailbox.put_tokens(2, NewTokens(12, index + 3, [200 + index], None))
    step = mailbox.take().step
    assert step.epoch == 9
    assert unpack_u32(step.handles) == [1, 2]
    assert unpack_u32(step.start_indices) == [0, 3]
    assert unpack_u32(step.counts) == [5, 5]
    assert unpack_u32(step.token_ids) == [100, 101, 102, 103, 104, 200, 201, 202, 203, 204]
    assert unpack_u32(step.logprob_widths) == [2, 0]
    assert unpack_u32(step.logprob_token_ids) == [7, 8] * 5
    assert unpack_f32(step.logprobs) == [-0.5, -1.5] * 5
    assert mailbox.take().step.handles == b"", "the mailbox is empty"


def test_large_results_take_several_messages_and_the_terminal_is_last() -> None:
    """The reader has not read for long, and each token has 20 logprobs."""
    engine, tokenizer = StepMailbox(1, SERVICE), TextMailbox(1, SERVICE)
    entry = text_pb2.TokenLogprob(token="word", token_bytes=b"word", logprob=-1.0)
    logprobs = [text_pb2.TokenLogprobs(sampled=entry, top=[entry] * 20)]
    num_tokens = 60_000
    for index in range(num_tokens):
        engine.put_tokens(1, NewTokens(1, index, [index], Logprobs(21, [7] * 21, [-0.5] * 21)))
        tokenizer.put_tokens(1, index, [index], [], list(logprobs))
    engine.put_terminal(engine_pb2.Terminal(handle=1))
    tokenizer.put_terminal(text_pb2.TextTerminal(handle=1))
    for mailbox, batch in ((engine, "step"), (tokenizer, "batch")):
        messages = []
        while not messages or not getattr(messages[-1], batch).terminals:
            messages.append(mailbox.take())
        assert 1 < len(messages) < 10
        assert max(message.ByteSize() for message in messages) < 2 * MAX_MERGED_BYTES
        found = [unpack_u32(getattr(message, batch).token_ids) for message in messages]
        assert [token for tokens in found for token in tokens] == list(range(num_tokens))


def abort(handle: int) -> text_pb2.TextEntry:
    return text_pb2.TextEntry(abort=pb.Abort(handle=handle))


async def test_entries_merge_while_a_write_is_in_flight() -> None:
    mailbox: EntryMailbox[text_pb2.TextEntry, list[int]] = EntryMailbox(
        lambda entries: [entry.abort.handle for entry in entries]
    )
    written: list[list[int]] = []
    may_write = asyncio.Event()
    started = asyncio.Event()

    async def slow_write(message: list[int]) -> None:
        written.append(message)
        started.set()
        await may_write.wait()

    writer = asyncio.create_task(mailbox.pump(slow_write))
    mailbox.put(abort(0))
    await asyncio.wait_for(started.wait(), 5)
    for handle in range(1, 100):
        mailbox.put(abort(handle))
    assert written == [[0]], "put does not wait for the writer"
    started.clear()
    may_write.set()
    await asyncio.wait_for(started.wait(), 5)
    assert written == [[0], list(range(1, 100))], "in order, as one message"
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


def test_large_entries_merge_only_up_to_the_size_limit() -> None:
    mailbox: EntryMailbox[text_pb2.TextEntry, list[text_pb2.TextEntry]] = EntryMailbox(list)
    for _ in range(5):
        submit = text_pb2.TextSubmit(text=text_pb2.TextInput(text="x" * (MAX_MERGED_BYTES // 2)))
        mailbox.put(text_pb2.TextEntry(submit=submit))
    assert [len(mailbox.take()) for _ in range(3)] == [2, 2, 1]


async def test_a_step_is_one_message_for_all_choices() -> None:
    """64 choices of one caller."""
    mailbox = StepMailbox(1, SERVICE)
    written: list[engine_pb2.EngineUp] = []
    done = asyncio.Event()

    async def write(message: engine_pb2.EngineUp) -> None:
        written.append(message)
        done.set()

    writer = asyncio.create_task(mailbox.pump(write))
    for handle in range(64):
        mailbox.put_tokens(handle, NewTokens(handle, 0, [handle], None))
    await asyncio.wait_for(done.wait(), 5)
    assert len(written) == 1 and len(unpack_u32(written[0].step.handles)) == 64
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


async def test_a_beat_is_a_message_only_if_no_other_was_sent_since_the_last_beat() -> None:
    mailbox: EntryMailbox[text_pb2.TextEntry, text_pb2.TextDown] = EntryMailbox(
        lambda entries: text_pb2.TextDown(entries=entries)
    )

    async def sends() -> bool:
        following = asyncio.ensure_future(mailbox.next())
        done, _ = await asyncio.wait([following], timeout=0.02)
        following.cancel()
        return bool(done)

    mailbox.beat()
    assert await sends(), "nothing was sent before"
    mailbox.beat()
    assert not await sends(), "the beat itself was sent"
    mailbox.beat()
    assert await sends()
    mailbox.beat()
    mailbox.put(text_pb2.TextEntry(abort=pb.Abort(handle=1)))
    assert await sends()
    mailbox.beat()
    assert not await sends(), "an entry was sent"
    mailbox.wake()
    assert await sends(), "always"
