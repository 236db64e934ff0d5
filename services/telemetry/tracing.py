"""Sets up the traces of a process: one trace per request. Spans are written by hand, where the work is.

Without an endpoint nothing of OpenTelemetry is imported, and a span is one object that does nothing
(services/telemetry/spans.py); with one, services/telemetry/otel.py makes them.
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
    """`endpoint` is an OTLP/gRPC URL; OTEL_* variables mean what they mean to OpenTelemetry's SDK, but for the
    service.instance.id, which tells our processes apart.

    Raises Fatal when they ask for what is not built in or cannot be used.
    """
    if endpoint is None:
        return NoTracing()
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
