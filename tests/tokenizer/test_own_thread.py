"""A function in a thread of its own: its result or error arrives, and one that does not end stops nobody."""

import asyncio
import threading

import pytest

from services.tokenizer.own_thread import OwnThreads

SECONDS = 10


async def test_results_and_errors_arrive() -> None:
    threads = OwnThreads(1)
    assert await threads.run(lambda: threading.current_thread().daemon) is True
    nothing: list[int] = []
    assert await threads.run(lambda: next(iter(nothing), None)) is None
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 5) == 5, "an error frees the place"


async def test_further_calls_wait_for_a_place() -> None:
    threads, release = OwnThreads(2), threading.Event()
    busy = [asyncio.create_task(threads.run(lambda: release.wait(SECONDS))) for _ in range(2)]
    waiting = asyncio.create_task(threads.run(lambda: "later"))
    assert not (await asyncio.wait([*busy, waiting], timeout=0.1))[0]
    release.set()
    async with asyncio.timeout(SECONDS):
        assert await waiting == "later" and all(await asyncio.gather(*busy))


async def test_a_cancelled_call_keeps_its_place_until_its_end() -> None:
    threads, release = OwnThreads(1), threading.Event()
    cancelled = asyncio.create_task(threads.run(lambda: release.wait(SECONDS)))
    assert not (await asyncio.wait([cancelled], timeout=0.1))[0]
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    waiting = asyncio.create_task(threads.run(lambda: "later"))
    assert not (await asyncio.wait([waiting], timeout=0.1))[0]
    release.set()
    async with asyncio.timeout(SECONDS):
        assert await waiting == "later"


def test_a_stopping_loop_does_not_wait() -> None:
    release = threading.Event()

    async def stop() -> None:
        task = asyncio.create_task(OwnThreads().run(lambda: release.wait(SECONDS)))
        await asyncio.wait([task], timeout=0.1)

    asyncio.run(stop())
    assert not release.is_set()
    [thread] = [thread for thread in threading.enumerate() if thread.name == "own"]
    release.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
