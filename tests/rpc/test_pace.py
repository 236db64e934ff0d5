"""The pace of streams: they wait for the end of a round, which each message makes longer."""

import asyncio

import pytest

from services.rpc import pace
from services.rpc.pace import Pace

SECONDS = 0.02


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "RESPONSE_SECONDS", SECONDS)


async def test_a_round_is_as_long_as_its_messages_and_wakes_all_streams() -> None:
    shared, clock = Pace(), asyncio.get_running_loop().time
    began = clock()

    async def one(num_messages: int) -> float:
        await shared.pause(num_messages)
        return clock() - began

    ends = await asyncio.gather(one(1), one(2), one(1))
    assert min(ends) >= 4 * SECONDS * 0.99
    assert max(ends) - min(ends) < SECONDS


async def test_a_stream_that_is_cancelled_ends_no_other_pause() -> None:
    shared = Pace()
    first, second = (asyncio.create_task(shared.pause()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


async def test_a_process_keeps_to_the_rate() -> None:
    shared, clock, sent = Pace(), asyncio.get_running_loop().time, 0
    began = clock()

    async def stream() -> None:
        nonlocal sent
        while clock() - began < 10 * SECONDS:
            sent += 1
            await shared.pause()

    await asyncio.gather(*(stream() for _ in range(5)))
    assert sent <= 10 + 5 + 1


async def test_a_quiet_time_is_not_made_up_for() -> None:
    """A stream that comes after a pause waits for its own message only; streams that send nothing do not count."""
    shared, clock = Pace(), asyncio.get_running_loop().time
    await shared.pause()
    await asyncio.sleep(3 * SECONDS)
    began = clock()
    await shared.pause()
    assert SECONDS * 0.99 <= clock() - began < 3 * SECONDS
