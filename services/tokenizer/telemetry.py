"""The tokenizer's telemetry: the time to render and encode each prompt, as a metric and as a span; the tool calls that
answers had, as metrics."""

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.telemetry.spans import Span, Tracing

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
OUTCOMES = ("no_tool_call", "tool_call")  # vLLM's words: https://github.com/vllm-project/vllm, vllm/parser/metrics.py


class TokenizerTelemetry:
    def __init__(self, registry: CollectorRegistry, tracing: Tracing, tool_format: str | None = None) -> None:
        """`tool_format`: the name of the model's format of tool calls; None without one."""
        self.tracing = tracing
        self._seconds = Histogram(
            "tandem:tokenizer_encode_seconds",
            "Seconds to render and encode one prompt.",
            registry=registry,
            buckets=SECONDS,
        )
        self._parsed = Counter(
            "vllm:tool_call_parser_invocations",
            "Finished choices that were searched for tool calls, by what was found.",
            ("model_name", "outcome"),
            registry=registry,
        )
        self._broken = Counter(
            "tandem:tool_calls_broken",
            "Tool calls that the model broke off, or that have arguments which are no JSON object.",
            ("format",),
            registry=registry,
        )
        self._tool_format = tool_format or ""
        if tool_format is not None:
            self._broken.labels(tool_format)

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

    def parsed(self, model: str, num_calls: int, num_broken: int) -> None:
        """Counts a finished choice of a request with tools: the calls that began in it, and those that are broken.

        `model`: the first of its served names.
        """
        self._parsed.labels(model, OUTCOMES[num_calls > 0]).inc()
        self._broken.labels(self._tool_format).inc(num_broken)
