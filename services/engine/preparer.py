"""What the engine knows of its worker's preparer: a thread that prepares grammars, one at a time, on its own socket."""

import time
from collections import deque
from collections.abc import Iterator

from engine_core.worker_messages import Prepared


class Preparer:
    def __init__(self, peer: bytes) -> None:
        """`peer` is the routing id of its socket."""
        self.peer = peer
        self._answers: deque[Prepared] = deque()  # not taken yet
        self._num_unanswered = 0  # Prepare messages without an answer
        self._since = 0.0  # when it began with the oldest of them; monotonic clock

    def asked(self) -> None:
        """Counts a Prepare message that was sent."""
        if not self._num_unanswered:
            self._since = time.monotonic()
        self._num_unanswered += 1

    def answered(self, answer: Prepared) -> None:
        """Keeps an answer until it is taken."""
        self._answers.append(answer)
        self._num_unanswered -= 1
        self._since = time.monotonic()

    def take(self) -> Iterator[Prepared]:
        """Removes and yields the answers, the oldest first."""
        while self._answers:
            yield self._answers.popleft()

    def busy_seconds(self) -> float:
        """Returns for how long it has prepared the same grammar; 0 if there is none."""
        return time.monotonic() - self._since if self._num_unanswered > 0 else 0.0
