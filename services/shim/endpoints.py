"""The handlers of all HTTP routes. The paths are in routes.py."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from services.rpc.errors import TandemError, invalid, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.shim.answer import Answer, ChatAnswer, CompletionAnswer
from services.shim.generation import Generation
from services.shim.metrics import ShimMetrics
from services.shim.parsing import check_num_choices, check_prompt_lengths, check_submit_size, read_json, validate
from services.shim.responses import SseResponse, json_response, until_disconnected
from services.shim.schema import ChatRequest, CompletionRequest, GenerationRequest
from services.shim.scrape import Scrape
from services.shim.telemetry import RequestTelemetry
from services.shim.tokenizer_client import TokenizerClient
from services.shim.translate import chat_submit, completion_submits
from services.telemetry.spans import Tracing, now
from services.version import VERSION


class Endpoints:
    """One handler method per route; one object per process.

    A handler raises TandemError to refuse a request, ClientGone or ClientDisconnect if the client disconnects.
    """

    def __init__(
        self,
        client: TokenizerClient,
        open_generations: set[Generation],
        metrics: ShimMetrics,
        scrape: Scrape,
        tracing: Tracing,
    ) -> None:
        self._client = client
        self._open_generations = open_generations
        self._metrics = metrics
        self._scrape = scrape
        self._tracing = tracing

    async def chat(self, request: Request) -> Response:
        with self._trace_refusals(request, ChatAnswer.operation):
            raw = await read_json(request)
            checked = validate(ChatRequest, raw, self._limits())
            model = self._served_name(checked.model)
            request_id = ChatAnswer.prefix + uuid.uuid4().hex
            submit = chat_submit(checked, raw, request_id, self._client.dispatcher.new_handle)
            check_submit_size(submit)
        return await self._respond(request, checked, model, request_id, [submit], ChatAnswer)

    async def completions(self, request: Request) -> Response:
        with self._trace_refusals(request, CompletionAnswer.operation):
            raw = await read_json(request)
            facts = self._facts()
            check_prompt_lengths(raw.get("prompt"), facts.max_model_len)
            checked = validate(CompletionRequest, raw, facts.limits)
            model = self._served_name(checked.model)
            request_id = CompletionAnswer.prefix + uuid.uuid4().hex
            submits = completion_submits(checked, request_id, self._client.dispatcher.new_handle)
            for submit in submits:
                check_submit_size(submit)
        return await self._respond(request, checked, model, request_id, submits, CompletionAnswer)

    async def models(self, request: Request) -> Response:
        return json_response(
            {"object": "list", "data": [self._model_card(name) for name in self._facts().served_model_names]}
        )

    async def model(self, request: Request) -> Response:
        return json_response(self._model_card(self._served_name(request.path_params["model"])))

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._client.dispatcher.connected else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(await self._scrape.text(), media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        return json_response({"version": VERSION})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Empties the prefix cache of every engine; returns {"success": true}.

        Raises TandemError: INVALID_ARGUMENT for any query parameter, UNAVAILABLE if a tokenizer fails.
        vLLM has this path only in development mode. Here it needs the API key, if one is set.
        """
        for name in request.query_params:
            raise invalid(f"unsupported parameter: {name}", name)
        await self._client.reset_prefix_cache()
        return json_response({"success": True})

    async def _respond(
        self,
        request: Request,
        checked: GenerationRequest,
        model: str,
        request_id: str,
        submits: list[text_pb2.TextSubmit],
        answer_type: type[Answer],
    ) -> Response:
        """Sets each submit's traceparent and starts one call for it. Returns the full JSON response or an SSE stream.

        With `stream`, it returns as soon as an engine accepts a choice or a choice ends. Raises, before it returns,
        TandemError for too many choices, no tokenizer or a failed choice, and ClientGone if the client disconnects.
        """
        check_num_choices(submits, self._facts().limits)
        telemetry = self._start_telemetry(request, answer_type, request_id, model)
        for submit in submits:
            submit.traceparent = telemetry.span.traceparent
        generation = Generation(self._client, submits, telemetry, self._open_generations)
        streaming = False
        try:
            answer = answer_type(request_id, model, self._facts().numerics_id, generation, checked.return_token_ids)
            await until_disconnected(request.receive, generation.wait_accepted())
            if not checked.stream:
                return json_response(await until_disconnected(request.receive, answer.full_response()))
            include_usage = checked.stream_options is not None and checked.stream_options.include_usage
            streaming = True
            return SseResponse(answer, generation, include_usage=include_usage)
        finally:
            if not streaming:
                generation.close()

    @contextmanager
    def _trace_refusals(self, request: Request, operation: str) -> Iterator[None]:
        """If the `with` block raises TandemError, writes a span with its code and no model name, and re-raises it."""
        began = now()
        try:
            yield
        except TandemError as error:
            span = self._tracing.start(operation, request.headers.get("traceparent", ""), at=began, server=True)
            span.set({"gen_ai.operation.name": operation, "gen_ai.provider.name": "tandem", "error.type": error.code})
            span.end(error=error.code)
            raise

    def _start_telemetry(
        self, request: Request, answer_type: type[Answer], request_id: str, model: str
    ) -> RequestTelemetry:
        """Starts the request's span, with its traceparent header, if any, as parent; returns its telemetry."""
        operation = answer_type.operation
        span = self._tracing.start(f"{operation} {model}", request.headers.get("traceparent", ""), server=True)
        span.set(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "tandem",
                "gen_ai.request.model": model,
            }
        )
        return RequestTelemetry(request_id, self._metrics.of(self._facts().served_model_names[0]), span)

    def _facts(self) -> pb.EngineFacts:
        """Returns the engine's facts (names, limits, numerics_id) from the hello of the tokenizer that connected last.

        Raises TandemError (UNAVAILABLE) before the first tokenizer connects.
        """
        peer = self._client.dispatcher.peer
        if peer is None:
            raise unavailable("the model is still being loaded")
        return peer.engine

    def _limits(self) -> pb.RequestLimits | None:
        """Returns the engine's limits, or None before the first tokenizer connects: a wrong request is still a 400."""
        peer = self._client.dispatcher.peer
        return peer.engine.limits if peer is not None else None

    def _served_name(self, model: str | None) -> str:
        """Returns `model` if it is a served name; for None the first served name.

        Raises TandemError: NOT_FOUND for any other name, UNAVAILABLE as `_facts`.
        """
        names = self._facts().served_model_names
        if model is None:
            return names[0]
        if model not in names:
            raise TandemError(
                "NOT_FOUND", f"the model {model!r} is not served; served models: {', '.join(names)}", "model"
            )
        return model

    def _model_card(self, name: str) -> dict[str, Any]:
        facts = self._facts()
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "tandem",
            "root": facts.served_model_names[0],
            "max_model_len": facts.max_model_len,
        }
