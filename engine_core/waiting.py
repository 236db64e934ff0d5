"""The queue of waiting requests. O(log n) to push and pop, amortised O(1) to remove.

Order: suspects, because each runs alone until it is cleared; then lower priority numbers, if the policy is priority;
then requests that have output tokens or were preempted; then by arrival; then by handle. Deferred requests, for which
something is still prepared, are in the queue, but are not offered until they are ready.
"""

import heapq
from collections.abc import Iterator

from engine_core.batch import Rank
from engine_core.request import Request

SLACK = 64  # removed requests that may stay in the heap as long as one waits
Place = tuple[bool, int, bool, int, int, Request]  # the smallest is the first request


class WaitingQueue:
    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._suspects: list[Place] = []  # a heap of ready requests, as is the next
        self._others: list[Place] = []
        self._ready: dict[int, int] = {}  # handle -> num_tokens when pushed; other heap entries were removed
        self._deferred: dict[int, Request] = {}  # by handle
        self.num_tokens = 0  # known tokens of all waiting requests

    def rank(self, request: Request) -> Rank:
        """Returns (priority, or 0 without that policy; arrival; handle).

        Running requests are sorted by it; the last one has the lowest rank and is preempted first. It is part of the
        waiting order, too.
        """
        return (request.priority if self._by_priority else 0, request.arrival, request.handle)

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def num_deferred(self) -> int:
        return len(self._deferred)

    def push(self, request: Request) -> None:
        """Adds a request, as deferred if it waits for something."""
        assert request.handle not in self._ready and request.handle not in self._deferred
        self.num_tokens += request.num_tokens
        if request.waits_for:
            self._deferred[request.handle] = request
        else:
            heapq.heappush(self._suspects if request.is_suspect else self._others, self.place(request))
            self._ready[request.handle] = request.num_tokens

    def ready(self, request: Request) -> None:
        """Offers a deferred request, at the place that it would have had without waiting for something."""
        self.remove(request)
        request.waits_for = ""
        self.push(request)

    def peek(self, *, suspects: bool = True) -> Request | None:
        """Returns the first ready request, or None if there is none; without `suspects`, the first that is none."""
        for heap in (self._suspects, self._others) if suspects else (self._others,):
            while heap and heap[0][-1].handle not in self._ready:
                heapq.heappop(heap)
            if heap:
                return heap[0][-1]
        return None

    def pop(self, request: Request) -> Request:
        """Removes and returns a request that `peek` has just returned."""
        heapq.heappop(self._suspects if request.is_suspect else self._others)
        self._leave(request)
        return request

    def remove(self, request: Request) -> None:
        """Removes a request, which must not be pushed again if it was ready. Raises KeyError if it is not here."""
        if request.waits_for:
            self.num_tokens -= self._deferred.pop(request.handle).num_tokens
            return
        self._leave(request)
        for heap in (self._suspects, self._others):
            if len(heap) > 2 * len(self._ready) + SLACK:
                heap[:] = [entry for entry in heap if entry[-1].handle in self._ready]
                heapq.heapify(heap)

    def _leave(self, request: Request) -> None:
        self.num_tokens -= self._ready.pop(request.handle)
        if not self._ready:
            self._suspects.clear()  # of removed requests
            self._others.clear()

    def clear(self) -> None:
        """Removes all requests. They may be pushed again."""
        self._suspects.clear()
        self._others.clear()
        self._ready.clear()
        self._deferred.clear()
        self.num_tokens = 0

    def place(self, request: Request) -> Place:
        """Returns a request's sort key in the queue, as it is now."""
        priority, arrival, handle = self.rank(request)
        is_new = request.num_output_tokens == request.num_preemptions == 0
        return (not request.is_suspect, priority, is_new, arrival, handle, request)

    def __len__(self) -> int:
        """Returns the number of all waiting requests, deferred ones included."""
        return len(self._ready) + len(self._deferred)

    def __iter__(self) -> Iterator[Request]:
        """Iterates over all waiting requests in queue order, O(n log n), deferred ones at their later places."""
        ready = [entry for entry in self._suspects + self._others if entry[-1].handle in self._ready]
        return (request for *_, request in sorted(ready + [self.place(one) for one in self._deferred.values()]))
