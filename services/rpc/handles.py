"""Numbers by which messages name requests."""

from collections.abc import Container

LAST = 2**31 - 1  # both columns of int32 and of u32 hold it


class Handles:
    """Counts from 1 to LAST and starts again at 1; a handle in use is skipped. Two uses of a handle are two billion
    requests apart, so a late message does not meet the wrong request."""

    def __init__(self, in_use: Container[int], after: int = 0) -> None:
        self._in_use = in_use
        self._last = after

    def new(self) -> int:
        while True:
            self._last = self._last + 1 if self._last < LAST else 1
            if self._last not in self._in_use:
                return self._last
