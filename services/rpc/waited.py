"""How long a request has waited: the `waited_ms` of its submits, by which an engine serves first what came first.

A duration, because the clocks of two processes are not compared. Each process adds its own part to what its caller
said. The time on the wire is not part of it.
"""

from time import monotonic

MAX_WAITED_MS = 2**32 - 1  # of the field; 49 days


class Waited:
    """Counts from its creation, when this process received the request, on top of what its caller said."""

    def __init__(self, before_ms: int) -> None:
        """`before_ms`: the caller's `waited_ms`."""
        self._before_ms = before_ms
        self._began = monotonic()

    def ms(self) -> int:
        """Returns the whole milliseconds so far, at most MAX_WAITED_MS."""
        return min(self._before_ms + int(1000 * (monotonic() - self._began)), MAX_WAITED_MS)
