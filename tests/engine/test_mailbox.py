"""What an engine's mailbox sends for a step, and in which order. How mailboxes merge and write: tests/rpc."""

import asyncio

import pytest

from engine_core.events import Logprobs, NewTokens
from services.engine.mailbox import MERGED_LOGPROBS, StepMailbox
from services.rpc import mailbox
from services.rpc.columns import unpack_f32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2
from services.rpc.mailbox import MERGED_TOKENS
from tests.fakes import SERVICE


def tokens(start_index: int, *token_ids: int, logprobs: Logprobs | None = None) -> NewTokens:
    return NewTokens(1, start_index, list(token_ids), logprobs)


def test_a_row_ends_at_a_multiple_of_the_merged_tokens() -> None:
    """So that a message to a slow reader can be cut between rows."""
    mailbox = StepMailbox(1, SERVICE)
    for index in range(MERGED_TOKENS - 2, MERGED_TOKENS + 2):
        mailbox.put_tokens(7, tokens(index, index))
    step = mailbox.take().step
    assert unpack_u32(step.handles) == [7, 7]
    assert unpack_u32(step.start_indices) == [MERGED_TOKENS - 2, MERGED_TOKENS]
    assert unpack_u32(step.counts) == [2, 2]


@pytest.mark.parametrize(("width", "counts"), [(21, [3]), (MERGED_LOGPROBS // 2, [2, 1]), (10**6, [1, 1, 1])])
def test_fewer_tokens_merge_where_each_has_many_logprobs(width: int, counts: list[int]) -> None:
    mailbox = StepMailbox(1, SERVICE)
    for index in range(3):
        mailbox.put_tokens(1, tokens(index, 5, logprobs=Logprobs(width, [], [])))
    assert unpack_u32(mailbox.take().step.counts) == counts


def test_logprobs_keep_to_their_row() -> None:
    mailbox = StepMailbox(1, SERVICE)
    mailbox.put_tokens(1, tokens(0, 5, logprobs=Logprobs(2, [5, 6], [-0.5, -1.0])))
    mailbox.put_tokens(2, tokens(0, 8))
    mailbox.put_tokens(1, tokens(1, 7, logprobs=Logprobs(2, [7, 9], [-0.25, -2.0])))
    step = mailbox.take().step
    assert unpack_u32(step.token_ids) == [5, 7, 8]
    assert unpack_u32(step.logprob_widths) == [2, 0]
    assert unpack_u32(step.logprob_token_ids) == [5, 6, 7, 9]
    assert unpack_f32(step.logprobs) == [-0.5, -1.0, -0.25, -2.0]


def test_the_events_of_a_step_are_put_in_without_changing_them() -> None:
    """The flight recorder may hold the same lists."""
    mailbox, first = StepMailbox(1, SERVICE), tokens(0, 5)
    mailbox.put_tokens(1, first)
    mailbox.put_tokens(1, tokens(1, 6))
    assert first.token_ids == [5]


def test_accepted_and_terminals_are_sent_once() -> None:
    mailbox = StepMailbox(4, SERVICE)
    mailbox.put_accepted(engine_pb2.Accepted(handle=1, seed=3))
    mailbox.put_terminal(engine_pb2.Terminal(handle=1))
    step = mailbox.take().step
    assert step.epoch == 4
    assert [(accepted.handle, accepted.seed) for accepted in step.accepted] == [(1, 3)]
    assert [terminal.handle for terminal in step.terminals] == [1]
    again = mailbox.take().step
    assert not again.accepted and not again.terminals


async def test_stats_wait_for_the_next_message() -> None:
    mailbox = StepMailbox(1, SERVICE)
    written: asyncio.Queue[engine_pb2.EngineUp] = asyncio.Queue()
    writer = asyncio.create_task(mailbox.pump(written.put))
    mailbox.put_stats(engine_pb2.EngineStats(num_steps=8))
    mailbox.put_stats(engine_pb2.EngineStats(num_steps=9))
    for _ in range(10):
        await asyncio.sleep(0)
    with pytest.raises(asyncio.QueueEmpty):
        written.get_nowait()
    mailbox.put_tokens(1, tokens(0, 5))
    async with asyncio.timeout(5):
        step = (await written.get()).step
    assert (step.step_id, step.stats.num_steps) == (9, 9)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


def test_tokens_wait_for_the_logprobs_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come first, over as many messages as they need."""
    monkeypatch.setattr(mailbox, "MAX_MERGED_BYTES", 100)
    sent = StepMailbox(1, SERVICE)
    for start in (1, 2, 3):
        sent.put_prompt_logprobs(pb.PromptLogprobs(handle=7, start_index=start, logprobs=bytes(80)))
    sent.put_tokens(7, tokens(0, 5))
    sent.put_terminal(engine_pb2.Terminal(handle=7))
    steps = [sent.take().step for _ in range(2)]
    assert [[one.start_index for one in step.prompt_logprobs] for step in steps] == [[1, 2], [3]]
    assert [unpack_u32(step.token_ids) for step in steps] == [[], [5]]
    assert [len(step.terminals) for step in steps] == [0, 1]
