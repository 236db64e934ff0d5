"""Runs a function in a thread of its own: one that may never end, as a request's own chat template, or that needs a
deep stack, as the check of a grammar.

Such threads take no place of asyncio.to_thread, and a process that stops does not wait for them.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_THREADS = 8  # all of them: further calls wait


def start(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts and returns a daemon thread that calls `target`."""
    thread = threading.Thread(target=target, daemon=True, name=name)
    thread.start()
    return thread


class OwnThreads:
    def __init__(
        self,
        max_threads: int = MAX_THREADS,
        start: Callable[[Callable[[], None], str], threading.Thread] = start,
        name: str = "own",
    ) -> None:
        """`start` starts a thread that calls a function, with the thread's name."""
        self._start = start
        self._name = name
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

        self._start(body, self._name)
        return await result
