"""Which calls may run now: any number beside others, or one alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Alone:
    """Used on one event loop. A call that is to run alone waits for those that run, and later ones wait for it."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # held by the call that runs alone, or waits for that
        self._num_others = 0
        self._none_left = asyncio.Event()
        self._none_left.set()

    @contextlib.asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        while self._turn.locked():
            async with self._turn:
                pass
        self._num_others += 1
        self._none_left.clear()
        try:
            yield
        finally:
            self._num_others -= 1
            if not self._num_others:
                self._none_left.set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._turn:
            await self._none_left.wait()
            yield
