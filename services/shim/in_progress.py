"""The shim's limits on work in progress: the number of requests, and the memory that they hold, over all its APIs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.rpc.errors import TandemError, too_much
from services.shim.metrics import ShimMetrics

MAX_HELD_BYTES = 512 * 1024 * 1024
SMALL_BYTES = 64 * 1024  # a request that holds so little is not refused for what others hold
RETRY_SECONDS = 1

# Counts further bytes that a request holds, or, if the number is negative, bytes that it has released.
Hold = Callable[[int], None]


def no_hold(size: int) -> None:
    """Counts nothing."""


class InProgress:
    """Counts the requests in progress, at most `limit`, and the bytes that they hold, at most MAX_HELD_BYTES.

    A request holds its body until it is translated, then its submits, and what of its answer has not been sent.
    """

    def __init__(self, limit: int, metrics: ShimMetrics) -> None:
        self._limit = limit
        self._rejections = metrics.http_rejections
        self._refusal: TandemError | None = None
        self._ended = asyncio.Event()  # set when a request ends; its only reader clears it
        self.num_requests = 0
        self.num_bytes = 0

    @property
    def is_draining(self) -> bool:
        return self._refusal is not None

    async def drain(self, refusal: TandemError) -> None:
        """Refuses new requests with this error, and returns once none is in progress."""
        self._refusal = refusal
        while self.num_requests:
            self._ended.clear()
            await self._ended.wait()

    def check(self) -> None:
        """Raises TandemError if no further request is accepted: RESOURCE_EXHAUSTED if it would be above the limit, else
        the error of `drain`."""
        if self._refusal is not None:
            raise self._refusal
        if self.num_requests >= self._limit:
            self._rejections.labels("max_concurrent_requests").inc()
            raise too_much(
                f"{self._limit} requests are in progress, the limit set by max_concurrent_requests; try again later",
                RETRY_SECONDS,
            )

    @contextmanager
    def request(self) -> Iterator[Hold]:
        """Counts a request for the time of the `with`. Yields `hold`, which counts its bytes.

        `hold` raises TandemError (RESOURCE_EXHAUSTED) if all requests then hold more than MAX_HELD_BYTES, and this one
        more than SMALL_BYTES.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self.num_bytes += size
            if size > 0 and self.num_bytes > MAX_HELD_BYTES and held > SMALL_BYTES:
                self._rejections.labels("body_bytes").inc()
                raise too_much(
                    f"the bodies and answers in progress have more than {MAX_HELD_BYTES} bytes; try again later",
                    RETRY_SECONDS,
                )

        self.num_requests += 1
        try:
            yield hold
        finally:
            self.num_requests -= 1
            self._ended.set()
            self.num_bytes -= held
