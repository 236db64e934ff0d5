"""Handles: the integers by which messages name choices."""

from collections.abc import Container

LAST = 2**31 - 1  # fits into columns of int32 and of u32


class Handles:
    """Gives out handles: counts up from `after` + 1 to LAST, then starts again at 1 and skips handles in use.

    Two uses of a handle are two billion choices apart, so a late message does not reach the wrong request.
    """

    def __init__(self, in_use: Container[int], after: int = 0) -> None:
        self._in_use = in_use  # searched only after the first round: before, no new handle can be in use
        self._last = after
        self._wrapped = False

    def new(self) -> int:
        """Returns a handle that is not in use."""
        while True:
            if self._last == LAST:
                self._last, self._wrapped = 0, True
            self._last += 1
            if not (self._wrapped and self._last in self._in_use):
                return self._last
