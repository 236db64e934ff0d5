"""Builds and checks the grammars of requests in threads of their own, beside the event loop.

The threads have a deep stack: a schema or expression may be nested. They are few: compiling takes a core, which the
requests that run need as well.
"""

import asyncio
import contextlib
import functools
import queue
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.grammar.deep_stack import start_deep
from services.rpc.errors import TandemError

T = TypeVar("T")

MAX_THREADS = 2  # further checks wait in a queue
SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ACCEPTED, REFUSED, FAILED = "accepted", "refused", "failed"


class GrammarChecks:
    def __init__(self, registry: CollectorRegistry, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._num_threads = 0
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        weakref.finalize(self, self._jobs.put, None)  # ends the threads
        self._num_waiting = 0  # jobs that have not ended
        self._seconds = Histogram(
            "tandem:grammar_check_seconds",
            "Seconds to build and check the grammar of one request, waiting for a thread included.",
            registry=registry,
            buckets=SECONDS,
        )
        self._checks = Counter(
            "tandem:grammar_checks",
            "Grammars that were built and checked, by the result.",
            ("result",),
            registry=registry,
        )
        for result in (ACCEPTED, REFUSED, FAILED):
            self._checks.labels(result)

    async def run(self, check: Callable[[], T]) -> T:
        """Returns the function's result or raises its error; measures and counts it as one check.

        A cancelled call goes on until the function ends: it cannot be stopped.
        """
        began, result = time.perf_counter(), FAILED
        try:
            found = await self.aside(check)
            result = ACCEPTED
            return found
        except TandemError:
            result = REFUSED
            raise
        finally:
            self._checks.labels(result).inc()
            self._seconds.observe(time.perf_counter() - began)

    async def aside(self, function: Callable[[], T]) -> T:
        """Returns the function's result or raises its error. It runs in one of the threads."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            self._num_waiting -= 1
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)  # type: ignore[arg-type]  # None is the function's own

        def job() -> None:
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:  # told to the caller
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value, error)

        self._num_waiting += 1
        self._jobs.put(job)
        if self._num_threads < min(self._num_waiting, self._max_threads):
            self._num_threads += 1
            start_deep(functools.partial(_work, self._jobs), f"grammars-{self._num_threads}")
        return await future


def _work(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    """Does the jobs until one is None, which it leaves for the other threads."""
    while True:
        job = jobs.get()
        if job is None:
            jobs.put(None)
            return
        job()
        del job  # it refers to the object whose end ends this thread
