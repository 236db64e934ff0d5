"""Spans through OpenTelemetry's SDK, exported over OTLP/gRPC. Only services/telemetry/tracing.py imports it."""

import re
import threading
import uuid
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from services.telemetry.spans import STOP_SECONDS, now
from services.version import VERSION

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_PARENT = Context()


class OtelTracing:
    def __init__(self, role: str, endpoint: str) -> None:
        attributes = {"service.instance.id": f"{role}-{uuid.uuid4().hex[:12]}", "service.version": VERSION}
        if str(Resource.create().attributes[SERVICE_NAME]).startswith("unknown_service"):  # no name in the environment
            attributes[SERVICE_NAME] = f"tandem-{role}"
        self._exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://") or None)
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("tandem", VERSION)

    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> "OtelSpan":
        kind = trace.SpanKind.SERVER if server else trace.SpanKind.INTERNAL
        return OtelSpan(self._tracer.start_span(name, _context(parent), kind, start_time=at or now()))

    def stop(self) -> None:
        """Exports the remaining spans, for STOP_SECONDS at most.

        The provider alone would wait 30 s for an exporter that retries. Shutting the exporter down ends the retries.
        """
        sending = threading.Thread(target=self._provider.shutdown, name="span-export", daemon=True)
        sending.start()
        sending.join(STOP_SECONDS)
        if sending.is_alive():
            self._exporter.shutdown()


class OtelSpan:
    def __init__(self, span: trace.Span) -> None:
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        self._span = span

    def set(self, attributes: dict[str, Any]) -> None:
        self._span.set_attributes(attributes)

    def end(self, at: int | None = None, *, error: str = "") -> None:
        if not self._span.is_recording():
            return
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end(at or now())


def _context(traceparent: str) -> Context:
    """Returns the context for a child span of `traceparent` (W3C); a context without a parent if it is not valid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return _NO_PARENT
    trace_id, span_id, flags = (int(found.group(index), 16) for index in (1, 2, 3))
    parent = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags & 1))
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), _NO_PARENT)
