"""Numbers by which messages name requests."""

from collections.abc import Container

LAST = 2**31 - 1  # both columns of int32 and of u32 hold it


class Handles:
    """Counts from 1 to LAST and starts again at 1; from then on a handle in use is skipped. Two uses of a handle are
    two billion requests apart, so a late message does not meet the wrong request."""

    def __init__(self, in_use: Container[int], after: int = 0) -> None:
        self._in_use = in_use  # asked only once all handles have been given: before, none of them can be in use
        self._last = after
        self._all_given = False

    def new(self) -> int:
        while True:
            if self._last == LAST:
                self._last, self._all_given = 0, True
            self._last += 1
            if not (self._all_given and self._last in self._in_use):
                return self._last
