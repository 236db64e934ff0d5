"""What a span is to the code that writes one, and spans that do nothing. Knows nothing of OpenTelemetry.

A span's context travels as a W3C `traceparent` in every submit and plan. https://www.w3.org/TR/trace-context/
"""

import time
from typing import Any, Protocol

STOP_SECONDS = 1.0
_EPOCH = time.time_ns() - time.perf_counter_ns()


class Span(Protocol):
    """`traceparent` is what children take as their parent; empty when nothing is traced."""

    traceparent: str

    def set(self, attributes: dict[str, Any]) -> None: ...

    def end(self, at: int | None = None, *, error: str = "") -> None:
        """`at` in nanoseconds since the epoch. Only the first call counts."""
        ...


class Tracing(Protocol):
    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> Span: ...

    def stop(self) -> None:
        """Sends what is left, for STOP_SECONDS at most: a collector that is away must not hold up the end."""
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


def now() -> int:
    """Nanoseconds since the epoch, on a clock that never goes back: it follows no later change of the system's."""
    return _EPOCH + time.perf_counter_ns()
