"""Measures how long other work keeps an event loop from its tasks."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

TICK_SECONDS = 0.002


@dataclass
class Lag:
    longest: float = 0.0  # seconds by which a tick was late


@contextlib.asynccontextmanager
async def measured_lag() -> AsyncIterator[Lag]:
    """Provides the lag of this event loop during the block."""
    lag = Lag()

    async def tick() -> None:
        while True:
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            lag.longest = max(lag.longest, time.monotonic() - due)

    task = asyncio.create_task(tick())
    try:
        await asyncio.sleep(0)
        yield lag
    finally:
        task.cancel()
