"""Runs a function that may never end, such as a request's own chat template, in a thread of its own.

Such threads take no place of asyncio.to_thread, and a process that stops does not wait for them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_THREADS = 8  # all of them: further calls wait


class OwnThreads:
    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._free = asyncio.Semaphore(max_threads)

    async def run(self, function: Callable[[], T]) -> T:
        """Returns the function's result or raises its error. Waits while all threads are busy.

        A cancelled call gives its thread's place back only when the function ends: it cannot be stopped.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            self._free.release()
            if result.cancelled():
                return
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]  # None is the function's own

        def body() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:  # told to the caller
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value, error)

        threading.Thread(target=body, daemon=True, name="own").start()
        return await result
