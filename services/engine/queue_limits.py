"""How much an engine takes before it refuses more, and when who was refused may come again.

Everything is counted at the moment in which it is handed to the busy loop: what the scheduler reports comes a step
later, and a burst would pass by it. What is resumed counts as well, but is never refused.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from services.rpc.errors import TandemError

RECENT, RECENT_SECONDS = 256, 60.0  # the pace at which room becomes free is that of so many, and so long
MAX_RETRY_SECONDS = 60


class QueueFull(TandemError):
    """`option` is the limit that was reached."""

    def __init__(self, option: str, message: str, retry_after: int) -> None:
        super().__init__("RESOURCE_EXHAUSTED", message, retryable=True, retry_after=retry_after)
        self.option = option


class QueueLimit:
    """One limit. `text` says what `held` counts."""

    def __init__(self, option: str, limit: int, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit  # 0: none
        self.held = 0
        self._option = option
        self._text = text
        self._clock = clock
        self._released: deque[tuple[float, int]] = deque(maxlen=RECENT)  # when, and how much

    def check(self, amount: int) -> None:
        """Raises QueueFull where so much more does not fit. Who holds nothing takes everything, or it never could."""
        if self.limit and self.held and self.held + amount > self.limit:
            message = f"{self.held} {self._text}, and {amount} more would pass {self._option}, {self.limit}"
            raise QueueFull(self._option, message, self._retry_after(amount))

    def hold(self, amount: int) -> None:
        self.held += amount

    def release(self, amount: int) -> None:
        self.held -= amount
        self._released.append((self._clock(), amount))

    def _retry_after(self, amount: int) -> int:
        """Whole seconds until so much will be free, at the pace of late; 1 where nothing became free of late."""
        now = self._clock()
        while self._released and self._released[0][0] < now - RECENT_SECONDS:
            self._released.popleft()
        free = sum(amount for _, amount in self._released)
        seconds = amount * (now - self._released[0][0]) / free if free else 1.0
        return min(max(1, math.ceil(seconds)), MAX_RETRY_SECONDS)


class QueueLimits:
    """All limits of one engine. Each choice is a request of its own."""

    def __init__(self, max_num_queued_reqs: int, max_num_queued_tokens: int) -> None:
        self.reqs = QueueLimit("max_num_queued_reqs", max_num_queued_reqs, "requests run or wait")
        self.tokens = QueueLimit("max_num_queued_tokens", max_num_queued_tokens, "prompt tokens wait for their answer")

    def check(self, num_tokens: list[int]) -> None:
        """`num_tokens` of each request. Raises QueueFull when one limit does not admit them all."""
        self.reqs.check(len(num_tokens))
        self.tokens.check(sum(num_tokens))

    def hold(self, num_tokens: int) -> None:
        """One request has been handed over."""
        self.reqs.hold(1)
        self.tokens.hold(num_tokens)
