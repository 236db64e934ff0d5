"""The end of a role that has requests: after the first signal they end by themselves, until the timeout or a second
signal.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from services.process.shell import AT_ONCE


async def run_and_drain(work: Sequence[Awaitable[Any]], drain: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Runs `work` until all of it is done, or one of it fails: then raises its error.

    When this task is cancelled, as by SIGTERM, `work` goes on while `drain()` runs, for at most `seconds`; a second
    cancellation ends the drain, and none begins after one with the message AT_ONCE. What is left of `work` is cancelled
    before this function ends.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    except asyncio.CancelledError as cancelled:
        if seconds and AT_ONCE not in cancelled.args:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(seconds):
                    await drain()
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
