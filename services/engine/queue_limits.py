"""The engine's queue limits: refuses new requests beyond them, with the seconds after which to try again.

A request counts from the moment in which it is passed to the busy loop. The scheduler's own counts come a step later
and would let a burst exceed the limits. Requests with an attempt above 1 or resumed tokens count, but are not refused.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from services.rpc.errors import TandemError

RECENT, RECENT_SECONDS = 256, 60.0  # the release rate is measured over so many releases, and so many seconds, at most
MAX_RETRY_SECONDS = 60  # the largest Retry-After


class QueueFull(TandemError):
    """A queue limit refused a submit (RESOURCE_EXHAUSTED). `option` names the limit; `retry_after` is in seconds."""

    def __init__(self, option: str, message: str, retry_after: int) -> None:
        super().__init__("RESOURCE_EXHAUSTED", message, retryable=True, retry_after=retry_after)
        self.option = option


class QueueLimit:
    """One limit, set by `option`; `limit` 0: none. `text` names what is counted in error messages: "{held} {text}"."""

    def __init__(self, option: str, limit: int, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit  # 0: unlimited
        self.held = 0  # counted now
        self._option = option
        self._text = text
        self._clock = clock
        self._released: deque[tuple[float, int]] = deque(maxlen=RECENT)  # time and amount

    def check(self, amount: int) -> None:
        """Raises QueueFull if `amount` more would exceed the limit. An empty queue accepts any amount."""
        if self.limit and self.held and self.held + amount > self.limit:
            message = f"{self.held} {self._text}: {amount} more would exceed {self._option} ({self.limit})"
            raise QueueFull(self._option, message, self._retry_after(amount))

    def hold(self, amount: int) -> None:
        self.held += amount

    def release(self, amount: int) -> None:
        self.held -= amount
        self._released.append((self._clock(), amount))

    def _retry_after(self, amount: int) -> int:
        """Returns the whole seconds until `amount` is released at the recent rate, from 1 to MAX_RETRY_SECONDS.

        Without a recent release: 1.
        """
        now = self._clock()
        while self._released and self._released[0][0] < now - RECENT_SECONDS:
            self._released.popleft()
        released = sum(amount for _, amount in self._released)
        seconds = amount * (now - self._released[0][0]) / released if released else 1.0
        return min(max(1, math.ceil(seconds)), MAX_RETRY_SECONDS)


class QueueLimits:
    """The limits of one engine on open requests, and on the known tokens of requests without a token from it.

    Each choice counts as one request.
    """

    def __init__(self, max_num_queued_reqs: int, max_num_queued_tokens: int) -> None:
        self.reqs = QueueLimit("max_num_queued_reqs", max_num_queued_reqs, "requests are running or waiting")
        self.tokens = QueueLimit(
            "max_num_queued_tokens", max_num_queued_tokens, "prompt tokens are waiting or in prefill"
        )

    def check(self, num_tokens: list[int]) -> None:
        """Raises QueueFull unless all requests fit. `num_tokens`: known tokens (prompt, resumed output) of each."""
        self.reqs.check(len(num_tokens))
        self.tokens.check(sum(num_tokens))

    def hold(self, num_tokens: int) -> None:
        """Counts one request with so many known tokens."""
        self.reqs.hold(1)
        self.tokens.hold(num_tokens)
