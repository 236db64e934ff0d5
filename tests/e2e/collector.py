"""An OTLP/gRPC collector for tests: keeps the spans that it receives. `python collector.py ADDRESS` prints each as a
line of JSON, for containers."""

import dataclasses
import json
import sys
import threading
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from services.machine import authority, loopback


@dataclass(frozen=True)
class Span:
    """One received span. Ids are hex; times are nanoseconds since the epoch."""

    name: str
    instance: str  # service.instance.id
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP service that keeps the received `spans`. A context manager; serves on a free port of this machine."""

    def __init__(self, address: str = authority(loopback(), 0)) -> None:
        self._address = address
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Collector":
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://{authority(loopback(), self._server.add_insecure_port(self._address))}"
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop(None).wait()

    @property
    def spans(self) -> list[Span]:
        with self._lock:
            return list(self._spans)

    def keep(self, spans: list[Span]) -> None:
        self._spans += spans

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for resource in request.resource_spans:
                instance = _attributes(resource.resource.attributes)["service.instance.id"]
                self.keep([_span(span, instance) for scope in resource.scope_spans for span in scope.spans])
        return trace_service_pb2.ExportTraceServiceResponse()


def _span(span: Any, instance: str) -> Span:
    return Span(
        span.name,
        instance,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


class _Printer(Collector):
    def keep(self, spans: list[Span]) -> None:
        for span in spans:
            print(json.dumps(dataclasses.asdict(span)), flush=True)


if __name__ == "__main__":
    with _Printer(sys.argv[1]):
        threading.Event().wait()
