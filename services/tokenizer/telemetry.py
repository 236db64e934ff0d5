"""The tokenizer's telemetry: the time to render and encode each prompt, as a metric and as a span."""

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram

from services.telemetry.spans import Span, Tracing

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class TokenizerTelemetry:
    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        self.tracing = tracing
        self._seconds = Histogram(
            "tandem:tokenizer_encode_seconds",
            "Seconds to render and encode one prompt.",
            registry=registry,
            buckets=SECONDS,
        )

    @contextlib.contextmanager
    def encoding(self, parent: Span) -> Iterator[None]:
        """Measures the body of a `with`, which renders and encodes one prompt: as a metric, and as a child span of
        `parent`, the request's span."""
        began = time.perf_counter()
        span = self.tracing.start("tokenizer.encode", parent.traceparent)
        try:
            yield
        finally:
            span.end()
            self._seconds.observe(time.perf_counter() - began)
