"""The queue of waiting requests. O(log n) to push and pop, amortised O(1) to remove.

Order: suspects, because each runs alone until it is cleared; then lower priority numbers, if the policy is priority;
then requests that have output tokens or were preempted; then by arrival, which is the order of handles.
"""

import heapq
from collections.abc import Iterator

from engine_core.batch import Rank
from engine_core.request import Request

SLACK = 64  # removed requests that may stay in the heap in any case


class WaitingQueue:
    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[bool, int, bool, int, Request]] = []
        self._live: dict[int, int] = {}  # handle -> num_tokens when pushed; other heap entries were removed
        self.num_tokens = 0  # known tokens of all waiting requests

    def rank(self, request: Request) -> Rank:
        """Returns (priority, or 0 without that policy; arrival).

        Running requests are sorted by it; the last one has the lowest rank and is preempted first. It is part of the
        waiting order, too.
        """
        return (request.priority if self._by_priority else 0, request.handle)

    def push(self, request: Request) -> None:
        assert request.handle not in self._live
        priority, arrival = self.rank(request)
        is_new = request.num_output_tokens == request.num_preemptions == 0
        heapq.heappush(self._heap, (not request.is_suspect, priority, is_new, arrival, request))
        self._live[request.handle] = request.num_tokens
        self.num_tokens += request.num_tokens

    def peek(self) -> Request:
        """Returns the first request. Raises IndexError when the queue is empty."""
        while self._heap[0][-1].handle not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][-1]

    def pop(self) -> Request:
        """Removes and returns the first request. Raises IndexError when the queue is empty."""
        request = self.peek()
        heapq.heappop(self._heap)
        self._forget(request)
        return request

    def remove(self, request: Request) -> None:
        """Removes a request, which must not be pushed again. Raises KeyError when it is not in the queue."""
        self._forget(request)
        if len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = [entry for entry in self._heap if entry[-1].handle in self._live]
            heapq.heapify(self._heap)

    def _forget(self, request: Request) -> None:
        self.num_tokens -= self._live.pop(request.handle)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        """Iterates over the waiting requests in queue order, O(n log n)."""
        return (request for *_, request in sorted(self._heap) if request.handle in self._live)
