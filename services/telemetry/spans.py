"""The interface of spans and tracing, and an implementation that does nothing. Knows nothing of OpenTelemetry.

A span's context travels as a W3C `traceparent` in every submit and plan. https://www.w3.org/TR/trace-context/
"""

import time
from typing import Any, Protocol

STOP_SECONDS = 1.0
_READINGS = 8


class Span(Protocol):
    """One span. Its child spans are started with its `traceparent` as parent; empty if tracing is off."""

    traceparent: str

    def set(self, attributes: dict[str, Any]) -> None: ...

    def end(self, at: int | None = None, *, error: str = "") -> None:
        """Ends the span at `at`, nanoseconds since the epoch; None: now. A non-empty `error` marks the span as failed.

        Only the first call has an effect.
        """
        ...


class Tracing(Protocol):
    """Starts the spans of one process. `parent` is a traceparent, or empty; `at` is in nanoseconds since the epoch,
    None: now. `server` marks a span that handles a client's request."""

    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> Span: ...

    def stop(self) -> None:
        """Exports the remaining spans, for STOP_SECONDS at most: an unreachable collector must not delay the exit."""
        ...


class _NoSpan:
    traceparent = ""

    def set(self, attributes: dict[str, Any]) -> None:
        pass

    def end(self, at: int | None = None, *, error: str = "") -> None:
        pass


NO_SPAN: Span = _NoSpan()


class NoTracing:
    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> Span:
        return NO_SPAN

    def stop(self) -> None:
        pass


def monotonic_epoch() -> int:
    """Returns the system's time less the monotonic clock's, in nanoseconds.

    Of several readings it takes the one whose clocks were read closest together: a busy machine can pause a process
    between them for tens of milliseconds, and all its spans would be that far from those of other processes.
    """
    readings = []
    for _ in range(_READINGS):
        before = time.perf_counter_ns()
        system = time.time_ns()
        readings.append((time.perf_counter_ns() - before, system - before))
    return min(readings)[1]


_EPOCH = monotonic_epoch()


def now() -> int:
    """Returns nanoseconds since the epoch on a monotonic clock: later changes of the system's time have no effect."""
    return _EPOCH + time.perf_counter_ns()
