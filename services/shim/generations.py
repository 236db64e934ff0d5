"""What every API needs to turn a checked request into a Generation: the engine's facts, served names, telemetry.

HTTP (endpoints.py) and gateways (gateway/) share one object, so that both refuse, count and trace alike.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.generation import Generation
from services.shim.metrics import ShimMetrics
from services.shim.parsing import check_num_choices
from services.shim.telemetry import RequestTelemetry
from services.shim.tokenizer_client import TokenizerClient
from services.telemetry.spans import Tracing, now


class Generations:
    """Starts generations, and keeps each one in `open` until its `close`; one object per process."""

    def __init__(self, client: TokenizerClient, metrics: ShimMetrics, tracing: Tracing) -> None:
        self.client = client
        self.open: set[Generation] = set()
        self._stopping: TandemError | None = None
        self._metrics = metrics
        self._tracing = tracing

    def facts(self) -> pb.EngineFacts:
        """Returns the engine's facts (names, limits, numerics_id) from the hello of the tokenizer that connected last.

        Raises TandemError (UNAVAILABLE) before the first tokenizer connects.
        """
        facts = self.client.facts()
        if facts is None:
            raise unavailable("the model is still being loaded")
        return facts

    def served_name(self, model: str | None) -> str:
        """Returns `model` if it is a served name; for None the first served name.

        Raises TandemError: NOT_FOUND for any other name, UNAVAILABLE as `facts`.
        """
        names = self.facts().served_model_names
        if not model:
            return names[0]
        if model not in names:
            raise TandemError(
                "NOT_FOUND",
                f"the model {model!r} is not served; served models: {', '.join(names)}",
                "model",
                reason="model_not_found",
            )
        return model

    @contextmanager
    def trace_refusals(self, operation: str, traceparent: str) -> Iterator[None]:
        """If the `with` block raises TandemError, writes a span with its code and no model name, and re-raises it."""
        began = now()
        try:
            yield
        except TandemError as error:
            span = self._tracing.start(operation, traceparent, at=began, server=True)
            span.set({"gen_ai.operation.name": operation, "gen_ai.provider.name": "tandem", "error.type": error.code})
            span.end(error=error.code)
            raise

    def start(
        self,
        operation: str,
        request_id: str,
        model: str,
        traceparent: str,
        submits: list[text_pb2.TextSubmit],
        key_name: str = "",
    ) -> Generation:
        """Sets each submit's traceparent, starts one call for it, and returns them as a Generation, which the caller
        must close. `traceparent`: the client's, the parent of the request's span; empty: none. `key_name`: of its API
        key, for the log and the span.

        Raises TandemError: INVALID_ARGUMENT for too many choices, UNAVAILABLE if no tokenizer is connected, and after
        `fail_all` the error of that.
        """
        if self._stopping is not None:
            raise self._stopping
        check_num_choices(submits, self.facts().limits)
        telemetry = self._start_telemetry(operation, request_id, model, traceparent, key_name)
        for submit in submits:
            submit.traceparent = telemetry.span.traceparent
        return Generation(self.client, submits, telemetry, self.open)

    def fail_all(self, error: TandemError) -> None:
        """Ends every open generation with this error, and every later one at its start. They stay open until
        `close`."""
        self._stopping = error
        for generation in self.open:
            generation.fail(error)

    def close_all(self) -> None:
        for generation in list(self.open):
            generation.close()

    def _start_telemetry(
        self, operation: str, request_id: str, model: str, traceparent: str, key_name: str
    ) -> RequestTelemetry:
        """Starts the request's span, with `traceparent`, if any, as parent; returns its telemetry."""
        span = self._tracing.start(f"{operation} {model}", traceparent, server=True)
        span.set(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "tandem",
                "gen_ai.request.model": model,
            }
        )
        metrics = self._metrics.of(self.facts().served_model_names[0])
        return RequestTelemetry(request_id, metrics, span, key_name)
