"""The mailbox of updates: one pending update per choice, and a reader that waits."""

import asyncio

import pytest

from services.rpc.errors import TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.updates import UpdateMailbox


def failed(message: str) -> text_pb2.TextTerminal:
    return text_pb2.TextTerminal(reason=pb.FINISH_REASON_ERROR, error=invalid(message).to_proto())


async def test_one_update_per_choice_in_the_order_of_arrival() -> None:
    mailbox = UpdateMailbox()
    assert mailbox.pending(2) is mailbox.pending(2)
    mailbox.pending(0)
    assert [update.index for update in await mailbox.take()] == [2, 0]
    again = mailbox.pending(2)
    assert again.pieces == [] and [update.index for update in await mailbox.take()] == [2]


async def test_take_waits() -> None:
    mailbox = UpdateMailbox()
    taken = asyncio.create_task(mailbox.take())
    await asyncio.wait({taken}, timeout=0.01)
    mailbox.accept()
    await asyncio.wait({taken}, timeout=0.01)
    assert not taken.done(), "an acceptance is no update"
    mailbox.pending(1)
    assert [update.index for update in await asyncio.wait_for(taken, 10)] == [1]


@pytest.mark.parametrize("accepted", [True, False])
async def test_wait_ends_at_an_acceptance_or_an_update(accepted: bool) -> None:
    mailbox = UpdateMailbox()
    waiting = asyncio.create_task(mailbox.wait())
    await asyncio.wait({waiting}, timeout=0.01)
    assert not waiting.done()
    if accepted:
        mailbox.accept()
    else:
        mailbox.pending(0)
    await asyncio.wait_for(waiting, 10)
    await asyncio.wait_for(mailbox.wait(), 10)


async def test_a_reader_that_gave_up_wakes_nothing() -> None:
    mailbox = UpdateMailbox()
    waiting = asyncio.create_task(mailbox.wait())
    await asyncio.wait({waiting}, timeout=0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    mailbox.pending(0)
    assert len(await asyncio.wait_for(mailbox.take(), 10)) == 1


def test_the_first_error() -> None:
    mailbox = UpdateMailbox()
    mailbox.check()
    mailbox.pending(0).terminal = text_pb2.TextTerminal(reason=pb.FINISH_REASON_STOP)
    mailbox.check()
    mailbox.pending(1).terminal = failed("first")
    mailbox.pending(2).terminal = failed("second")
    with pytest.raises(TandemError, match="first"):
        mailbox.check()
