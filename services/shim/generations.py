"""What every API needs to turn a checked request into a Generation: the engine's facts, served names, telemetry.

HTTP (endpoints.py) and gateways (gateway/) share one object, so that both refuse, count and trace alike.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.bulk import Bulk
from services.shim.generation import NO_BULKS, Generation
from services.shim.in_progress import Hold, no_hold
from services.shim.metrics import ShimMetrics
from services.shim.models import known, served_name
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
        return known(self.client.facts())

    def served_name(self, model: str | None) -> str:
        """Returns `model`, or the first served name, as models.served_name does. Raises TandemError also as `facts`."""
        return served_name(self.facts(), model)

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
        *,
        key_name: str = "",
        bulks: Mapping[int, Bulk] = NO_BULKS,
        hold: Hold = no_hold,
    ) -> Generation:
        """Sets each submit's request id, handles and traceparent, starts the first calls, and returns them as a
        Generation, which the caller must close. `traceparent`: the client's, the parent of the request's span; empty:
        none. `key_name`: of its API key, for the log and the span. `bulks`, `hold`: as of Generation.

        Raises TandemError: INVALID_ARGUMENT for too many choices, UNAVAILABLE if no tokenizer is connected, and after
        `fail_all` the error of that.
        """
        if self._stopping is not None:
            raise self._stopping
        check_num_choices(submits, self.facts().limits)
        telemetry = self._start_telemetry(operation, request_id, model, traceparent, key_name)
        new_handle = self.client.dispatcher.new_handle
        for submit in submits:
            submit.request_id = request_id
            submit.traceparent = telemetry.span.traceparent
            for choice in submit.choices:
                choice.handle = new_handle()
        return Generation(self.client, submits, telemetry, self.open, bulks=bulks, hold=hold)

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
