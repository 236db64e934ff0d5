"""Sets up the tracing of a process: one trace per request, with spans that each role starts and ends itself.

Without an endpoint OpenTelemetry is not imported, and all spans are one object that does nothing
(services/telemetry/spans.py). With an endpoint services/telemetry/otel.py makes them.
https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

import os
from pathlib import Path

from services.errors import Fatal
from services.telemetry.spans import NoTracing, Tracing

PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FILE_VARIABLES = [
    f"OTEL_EXPORTER_OTLP_{signal}{name}"
    for signal in ("", "TRACES_")
    for name in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
]


def set_up_tracing(role: str, endpoint: str | None) -> Tracing:
    """Returns the tracing of this process. `endpoint`: an OTLP/gRPC URL; None: no tracing.

    OpenTelemetry's SDK reads the OTEL_* variables. They cannot set service.instance.id and service.version: the
    former distinguishes the processes. Raises Fatal for a protocol other than gRPC, an unreadable file, or
    a bad URL or variable.
    """
    if endpoint is None:
        return NoTracing()
    protocol = next((os.environ[name] for name in PROTOCOL_VARIABLES if os.environ.get(name)), "grpc")
    if protocol != "grpc":
        raise Fatal(f"traces are exported over OTLP/gRPC only, but the environment sets the protocol {protocol}")
    _check_files()
    from services.telemetry.otel import OtelTracing  # half a second, only with an endpoint

    try:
        return OtelTracing(role, endpoint)
    except Exception as error:  # a bad URL or variable raises many types
        raise Fatal(f"--otlp-traces-endpoint {endpoint}: {error}") from error


def _check_files() -> None:
    """Raises Fatal if a file that one of FILE_VARIABLES names cannot be read. The exporter would log a traceback and go
    on without it."""
    for name in FILE_VARIABLES:
        if path := os.environ.get(name):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise Fatal(f"{name}: {path} cannot be read: {error.strerror}") from error
