"""Each end of a stream beats, and notices the silence of the other; a machine that stood still counts as one tick."""

import asyncio
import time

import pytest

from services.rpc import heartbeat
from services.rpc.heartbeat import SILENT_BEATS, Heartbeat, Silent


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)


async def test_silence_ends_the_stream() -> None:
    beats: list[int] = []
    with pytest.raises(Silent):
        async with asyncio.timeout(10), Heartbeat(lambda: beats.append(1)) as heart:
            await heart.listen(asyncio.Event().wait())
    assert len(beats) == 1 + SILENT_BEATS, "the first one at once"


async def test_messages_keep_the_stream() -> None:
    beats: list[int] = []
    messages: asyncio.Queue[int] = asyncio.Queue()

    def beat() -> None:
        beats.append(1)
        if len(beats) % SILENT_BEATS == 0:
            messages.put_nowait(len(beats))

    async with asyncio.timeout(10), Heartbeat(beat) as heart:
        for number in range(1, 5):
            assert await heart.listen(messages.get()) == number * SILENT_BEATS


async def test_only_a_reader_counts_silence() -> None:
    beats: list[int] = []
    enough = asyncio.Event()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3 * SILENT_BEATS:
            enough.set()

    async with asyncio.timeout(10), Heartbeat(beat):
        await enough.wait()


async def test_time_in_which_the_process_stood_still_is_no_silence() -> None:
    arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def beat() -> None:
        if not arrived.done():
            until = time.monotonic() + 20 * SILENT_BEATS * heartbeat.BEAT_SECONDS
            while time.monotonic() < until:
                pass
            arrived.set_result("message")

    async with asyncio.timeout(10), Heartbeat(beat) as heart:
        assert await heart.listen(arrived) == "message"


async def test_other_errors_and_cancellations_pass() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02), Heartbeat(lambda: None) as heart:
            await heart.listen(asyncio.Event().wait())
    with pytest.raises(ValueError, match="own"):
        async with Heartbeat(lambda: None):
            raise ValueError("own")
