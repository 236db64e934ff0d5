"""The queue of requests that wait for their turn, best first. O(log n) to push and pop, O(1) to remove.

Suspects first, for each of them has the steps to itself until it is cleared; then by priority where that is the policy
(a lower number first), then those that ran before, or elsewhere, ahead of new work, then by arrival: handles count up.
"""

import heapq
from collections.abc import Iterator

from engine_core.batch import Rank
from engine_core.request import Request

SLACK = 64  # removed requests that may stay in the heap


class WaitingQueue:
    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[bool, int, bool, int, Request]] = []
        self._live: dict[int, int] = {}  # handle -> tokens when it came; what the heap has beyond these was removed
        self.num_tokens = 0

    def rank(self, request: Request) -> Rank:
        """The order of the running; the last of them gives way first."""
        return (request.priority if self._by_priority else 0, request.handle)

    def push(self, request: Request) -> None:
        assert request.handle not in self._live
        priority, arrival = self.rank(request)
        is_new = request.num_output_tokens == request.num_preemptions == 0
        heapq.heappush(self._heap, (not request.is_suspect, priority, is_new, arrival, request))
        self._live[request.handle] = request.num_tokens
        self.num_tokens += request.num_tokens

    def peek(self) -> Request:
        """Raises IndexError when empty."""
        while self._heap[0][-1].handle not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def pop(self) -> Request:
        """Raises IndexError when empty."""
        request = self.peek()
        heapq.heappop(self._heap)
        self._forget(request)
        return request

    def remove(self, request: Request) -> None:
        """Raises KeyError when it does not wait. A handle that was removed must not come back."""
        self._forget(request)
        if len(self._heap) > 2 * len(self._live) + SLACK:  # those that nobody has come past would stay for ever
            self._heap = [entry for entry in self._heap if entry[-1].handle in self._live]
            heapq.heapify(self._heap)

    def _forget(self, request: Request) -> None:
        self.num_tokens -= self._live.pop(request.handle)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        """In order; for tests and reports, O(n log n)."""
        return (request for *_, request in sorted(self._heap) if request.handle in self._live)
