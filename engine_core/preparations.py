"""Which waiting requests the worker prepares, and for which it holds what it has prepared: a grammar's matcher.

A request that waits for "grammar" runs only once it is prepared. The worker holds a matcher by its request's handle,
also while the request is preempted, until a plan drops it. A worker's restart loses all: each request waits again.
Knows no grammars, blocks or plans.
"""

import heapq

from engine_core.request import Request
from engine_core.waiting import SLACK, Place

GRAMMAR = "grammar"  # Request.waits_for
MAX_IN_PROGRESS = 64  # the worker prepares them one after the other; more would only fill its socket's queue
DEADLY = 3  # worker deaths during a request's preparation, the last two with nothing else at work
DEADLY_GRAMMAR = "the worker died three times while it prepared this request's grammar"


class Preparations:
    """At most `2 * max_num_seqs` requests are held by the worker: as many as run, and as many to run next. While
    steps run, also as many of ended requests, until a plan drops those.

    After a worker's death, each request whose preparation was in progress is a suspect. Suspects are prepared first,
    one at a time, and no step runs meanwhile. So if the worker dies again and again, that grammar is the reason.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_held = 2 * max_num_seqs
        self._queue: list[tuple[bool, Place]] = []  # a heap; entries of requests that have ended are skipped
        self._waiting: dict[int, Request] = {}  # in the queue, by handle
        self._in_progress: dict[int, Request] = {}  # sent to the worker, no answer yet; a request may have ended
        self._held: set[int] = set()  # handles of prepared requests
        self._suspects: set[int] = set()  # handles, waiting or in progress
        self._is_possible = False  # this worker prepares: `begin` has been called

    def wait(self, request: Request, place: Place) -> None:
        """Adds a request with a grammar to those that are to be prepared. `place`: its place among waiting requests."""
        request.waits_for = GRAMMAR
        if request.preparation_deaths:
            self._suspects.add(request.handle)
        self._waiting[request.handle] = request
        heapq.heappush(self._queue, (not request.preparation_deaths, place))

    @property
    def holds_steps(self) -> bool:
        """Whether no step may be planned, because a suspect is being prepared or is the next one."""
        return self._is_possible and bool(self._suspects)

    @property
    def explains_death(self) -> bool:
        """Whether a suspect is being prepared, so that a death of the worker counts against it alone."""
        return not self._suspects.isdisjoint(self._in_progress)

    def begin(self, in_flight: bool, num_dropped: int) -> list[Request]:
        """Returns the requests that the worker is to prepare now, in order. `in_flight`: a step's result is awaited.
        `num_dropped`: how many the next plan drops."""
        self._is_possible = True
        if self._suspects:
            return [] if in_flight or self._in_progress else [self._pop()]
        begun: list[Request] = []
        while self._waiting and self._has_room(in_flight, num_dropped):
            begun.append(self._pop())
        return begun

    def _has_room(self, in_flight: bool, num_dropped: int) -> bool:
        num = len(self._in_progress)
        kept = num + len(self._held)
        if not kept and not in_flight:  # maybe there is nothing else to plan, and so no plan that drops
            return True
        return num < MAX_IN_PROGRESS and kept < self._max_held and kept + num_dropped < 2 * self._max_held

    def _pop(self) -> Request:
        """Moves the first waiting request into those in progress, and returns it."""
        while True:
            request = heapq.heappop(self._queue)[1][-1]
            if self._waiting.pop(request.handle, None) is not None:
                self._in_progress[request.handle] = request
                self._drop_removed()
                return request

    def end(self, handle: int, *, has_failed: bool) -> bool:
        """The worker has prepared a request, or failed to. Returns False if none with this handle is in progress."""
        request = self._in_progress.pop(handle, None)
        if request is None:
            return False
        request.preparation_deaths = 0
        self._suspects.discard(handle)
        if not has_failed:
            self._held.add(handle)
        return True

    def forget(self, handle: int) -> bool:
        """Drops a request that has ended. Returns whether the worker holds something for it that a plan must drop.

        If its preparation is in progress, it does so once that has ended: call `forget` again then.
        """
        if self._waiting.pop(handle, None) is not None:
            self._suspects.discard(handle)
            self._drop_removed()
        is_held = handle in self._held
        self._held.discard(handle)
        return is_held

    def _drop_removed(self) -> None:
        if not self._waiting:
            self._queue.clear()
        elif len(self._queue) > 2 * len(self._waiting) + SLACK:
            self._queue = [entry for entry in self._queue if entry[1][-1].handle in self._waiting]
            heapq.heapify(self._queue)

    def restart(self, *, is_death: bool) -> None:
        """Forgets everything, for the worker is lost. Counts its death for the requests that it was preparing."""
        for request in self._in_progress.values():
            request.preparation_deaths += is_death
        for kept in (self._queue, self._waiting, self._in_progress, self._held, self._suspects):
            kept.clear()
        self._is_possible = False


def restart_error(request: Request) -> str | None:
    """Returns why a request ends at the worker's restart, or None if its preparation is no reason to."""
    return DEADLY_GRAMMAR if request.preparation_deaths >= DEADLY else None
