"""Traces: one per request, its context handed on as a W3C `traceparent` in every submit and plan.

Spans are written by hand, where the work is. Without an endpoint nothing of OpenTelemetry is imported, and a span is
one object that does nothing; with one, services/telemetry/otel.py makes them. https://www.w3.org/TR/trace-context/ · https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

import os
import time
from pathlib import Path
from typing import Any, Protocol

from services.errors import Fatal

STOP_SECONDS = 1.0
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FILE_VARIABLES = [
    f"OTEL_EXPORTER_OTLP_{signal}{name}"
    for signal in ("", "TRACES_")
    for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
]
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


class _NoTracing:
    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> Span:
        return NO_SPAN

    def stop(self) -> None:
        pass


def now() -> int:
    """Nanoseconds since the epoch, on a clock that never goes back: it follows no later change of the system's."""
    return _EPOCH + time.perf_counter_ns()


def set_up_tracing(role: str, endpoint: str | None) -> Tracing:
    """`endpoint` is an OTLP/gRPC URL; OTEL_* variables mean what they mean to OpenTelemetry's SDK, but for the
    service.instance.id, which tells our processes apart.

    Raises Fatal when they ask for what is not built in or cannot be used.
    """
    if endpoint is None:
        return _NoTracing()
    protocol = next((os.environ[name] for name in PROTOCOL_VARIABLES if os.environ.get(name)), "grpc")
    if protocol != "grpc":
        raise Fatal(f"traces are exported over OTLP/gRPC only, but the environment asks for {protocol}")
    _check_files()
    from services.telemetry.otel import OtelTracing  # half a second that only those pay who want traces

    try:
        return OtelTracing(role, endpoint)
    except Exception as error:  # whatever the libraries make of a bad URL or variable
        raise Fatal(f"--otlp-traces-endpoint {endpoint}: {error}") from error


def _check_files() -> None:
    """The exporter would log a traceback for a file that it cannot read, and go on without it. Raises Fatal."""
    for name in FILE_VARIABLES:
        if path := os.environ.get(name):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise Fatal(f"{name}: {path} cannot be read: {error.strerror}") from error
