"""Measures what requests cost the event loop: the CPU time of its longest step. Other processes do not change it."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator


class LongestStep:
    """`seconds`: the CPU time of the longest step so far, of this thread."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)  # every other task that is ready takes its step
            now = time.thread_time()
            self.seconds, last = max(self.seconds, now - last), now


@contextlib.asynccontextmanager
async def longest_step() -> AsyncIterator[LongestStep]:
    """Yields the measure of the steps within. Objects from before are no work for the garbage collector meanwhile."""
    gc.collect()
    gc.freeze()
    step = LongestStep()
    watching = asyncio.create_task(step.watch())
    try:
        yield step
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        gc.unfreeze()
