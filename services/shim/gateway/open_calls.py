"""The calls of Generate that have not ended, by request id, so that Abort finds them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from services.shim.generation import Generation


class OpenCalls:
    """Ids are labels that a gateway chooses: several open calls may have the same one."""

    def __init__(self) -> None:
        self._by_id: dict[str, set[Generation]] = {}

    @contextmanager
    def add(self, request_id: str, generation: Generation) -> Iterator[None]:
        """For the time of the `with`, `abort` finds the generation by this id; not if it is empty."""
        if not request_id:
            yield
            return
        same = self._by_id.setdefault(request_id, set())
        same.add(generation)
        try:
            yield
        finally:
            same.discard(generation)
            if not same and self._by_id.get(request_id) is same:
                del self._by_id[request_id]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Aborts all calls with these ids; unknown ids, as those of calls that have ended, are passed over."""
        for request_id in request_ids:
            for generation in self._by_id.get(request_id, ()):
                generation.abort()
