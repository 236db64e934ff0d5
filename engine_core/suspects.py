"""Against whom a worker's death is held, who has the steps to itself for it, and who gets no other worker.

A death is a strike against all that ran. Who has two without a token in between is a suspect, and runs alone until it
brings a token or the worker dies under it once more. Knows no blocks and no plans.
"""

from collections.abc import Iterable, Sequence

from engine_core.request import Request
from engine_core.waiting import WaitingQueue


class Suspects:
    def __init__(self) -> None:
        self._handles: set[int] = set()

    def alone(self, running: Sequence[Request], waiting: WaitingQueue) -> Request | None:
        """The suspect that has the next steps to itself, until it has brought a token: the others pause."""
        if not self._handles:
            return None
        return next((one for one in running if one.handle in self._handles), None) or waiting.peek()

    def watch(self, request: Request) -> None:
        """A request that waits: it may have its strikes from before."""
        if request.is_suspect:
            self._handles.add(request.handle)

    def strike(self, running: Iterable[Request], alone: Request | None) -> None:
        """The worker died while these ran; who paused beside a suspect had no part in it."""
        for request in running:
            if alone is None or request is alone:
                request.strikes += 1
            self.watch(request)

    def clear(self, request: Request) -> None:
        """It has brought a token."""
        request.strikes = 0
        self._handles.discard(request.handle)

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._handles.discard(request.handle)


def verdict(request: Request, alone: Request | None, capacity_tokens: int) -> str | None:
    """Why a request gets no other worker, or None. `capacity_tokens` is what the next one's KV cache holds."""
    if request.num_prompt_tokens + request.sampling.max_tokens - 1 > capacity_tokens:
        return f"the next worker's KV cache is too small: {capacity_tokens} tokens"
    if request is alone and request.is_condemned:
        return "the worker died at this request, which it had to itself"
    return None
