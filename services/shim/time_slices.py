"""Divides long work on the event loop into slices, so that other requests are served between them."""

import asyncio
import time

SLICE_SECONDS = 0.003


class TimeSlices:
    """The slices of one piece of work. The first one begins with the object."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether the slice has lasted for SLICE_SECONDS or longer."""
        return time.perf_counter() - self._began >= SLICE_SECONDS

    async def pause(self) -> None:
        """Ends the slice if it is over: lets the event loop run what else is ready. Then the next slice begins."""
        if self.is_over:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
