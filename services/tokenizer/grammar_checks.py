"""Builds and checks the grammars of requests in a pool of threads, beside the event loop.

The threads have a deep stack: a schema or expression may be nested. They are few: compiling takes a core, which the
requests that run need as well.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.grammar.deep_stack import deep_pool
from services.rpc.errors import TandemError

T = TypeVar("T")

MAX_THREADS = 2  # further checks wait
SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
ACCEPTED, REFUSED, FAILED = "accepted", "refused", "failed"


class GrammarChecks:
    def __init__(self, registry: CollectorRegistry, max_threads: int = MAX_THREADS) -> None:
        self._threads = deep_pool(max_threads, "grammars")
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

        A cancelled call that has begun goes on until the function ends: it cannot be stopped.
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
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)
