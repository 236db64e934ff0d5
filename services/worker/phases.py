"""Times the phases of the worker's start, for one line of the log."""

import time


class Phases:
    """`done(name)` ends a phase, which began where the last one ended.

    `imports`: seconds since the process began, the first phase; 0 for none.
    """

    def __init__(self, imports: float = 0.0) -> None:
        self._seconds = {"imports": imports} if imports else {}
        self._last = time.monotonic()

    def done(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """Returns the sum and the phases in seconds, as "2.6 s: imports 1.9, weights 0.5, KV cache 0.2"."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        return f"{sum(self._seconds.values()):.1f} s: {parts}"
