"""Tells whether the other end of a stream makes progress: each end sends a message at least every 2 * BEAT_SECONDS.

gRPC's own pings are answered by its threads, even if the process's event loop hangs; these messages are not. Silence
is counted in ticks of this process's event loop, so a machine that stood still counts as one tick.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

BEAT_SECONDS = 0.5
SILENT_BEATS = 5  # so many in a row without a message: the other end hangs, or is gone. At most 3 s after the last one
ResultT = TypeVar("ResultT")


class Silent(Exception):
    """The other end of the stream has sent nothing for SILENT_BEATS."""

    def __init__(self) -> None:
        super().__init__(f"no message for {SILENT_BEATS * BEAT_SECONDS:g} s")


class Heartbeat:
    """Of one stream. A context manager: it beats inside, and raises Silent there if the other end falls silent."""

    def __init__(self, beat: Callable[[], None]) -> None:
        """`beat` sends a message, unless one was sent since the last beat. It must not block."""
        self._beat = beat
        self._num_silent = 0
        self._is_listening = False
        self._timer: asyncio.TimerHandle | None = None
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> "Heartbeat":
        await self._scope.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._beat()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._tick)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        try:
            await self._scope.__aexit__(*exception)  # type: ignore[arg-type]
        except TimeoutError as error:
            raise Silent from error

    async def listen(self, read: Awaitable[ResultT]) -> ResultT:
        """Returns what `read`, the read of the next message, returns. Silence counts only during this call."""
        self._num_silent, self._is_listening = 0, True
        try:
            return await read
        finally:
            self._is_listening = False

    def _tick(self) -> None:
        self._num_silent += self._is_listening
        if self._num_silent > SILENT_BEATS:
            self._scope.reschedule(self._loop.time())
            return
        self._beat()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._tick)
