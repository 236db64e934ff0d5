"""What each HTTP route does with a request, from its body to its response."""

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
from services.shim.parsing import check, check_size, check_token_counts, read_json
from services.shim.responses import SseResponse, json_response, until_disconnected
from services.shim.schema import ChatRequest, CompletionRequest, GenerationRequest
from services.shim.scrape import Scrape
from services.shim.telemetry import RequestTelemetry
from services.shim.tokenizer_client import TokenizerClient
from services.shim.translate import chat_submit, completion_submits
from services.telemetry.spans import Tracing, now
from services.version import VERSION


class Endpoints:
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
        with self._refusals_traced(request, ChatAnswer.operation):
            raw = await read_json(request)
            checked = check(ChatRequest, raw, self._facts().limits)
            model = self._served(checked.model)
            request_id = ChatAnswer.prefix + uuid.uuid4().hex
            submit = chat_submit(checked, raw, request_id, self._client.dispatcher.new_handle)
            check_size(submit)
        return await self._answer(request, checked, model, request_id, [submit], ChatAnswer)

    async def completions(self, request: Request) -> Response:
        with self._refusals_traced(request, CompletionAnswer.operation):
            raw = await read_json(request)
            facts = self._facts()
            check_token_counts(raw.get("prompt"), facts.max_model_len)
            checked = check(CompletionRequest, raw, facts.limits)
            model = self._served(checked.model)
            request_id = CompletionAnswer.prefix + uuid.uuid4().hex
            submits = completion_submits(checked, request_id, self._client.dispatcher.new_handle)
            for submit in submits:
                check_size(submit)
        return await self._answer(request, checked, model, request_id, submits, CompletionAnswer)

    async def models(self, request: Request) -> Response:
        return json_response(
            {"object": "list", "data": [self._card(name) for name in self._facts().served_model_names]}
        )

    async def model(self, request: Request) -> Response:
        return json_response(self._card(self._served(request.path_params["model"])))

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._client.dispatcher.connected else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(await self._scrape.text(), media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        return json_response({"version": VERSION})

    async def reset_prefix_cache(self, request: Request) -> Response:
        """As in vLLM, but without its development mode: nothing is lost but time, and the key guards it."""
        for name in request.query_params:
            raise invalid(f"unsupported parameter: {name}", name)
        await self._client.reset_prefix_cache()
        return json_response({"success": True})

    async def _answer(
        self,
        request: Request,
        checked: GenerationRequest,
        model: str,
        request_id: str,
        submits: list[text_pb2.TextSubmit],
        answer_type: type[Answer],
    ) -> Response:
        num_choices, limit = sum(len(submit.choices) for submit in submits), self._facts().limits.max_num_queued_reqs
        if 0 < limit < num_choices:
            raise invalid(f"the request asks for {num_choices} choices, but max_num_queued_reqs is {limit}", "n")
        record = self._begin(request, answer_type, request_id, model)
        for submit in submits:
            submit.traceparent = record.span.traceparent
        generation = Generation(self._client, submits, record, self._open_generations)
        streaming = False
        try:
            answer = answer_type(request_id, model, self._facts().numerics_id, generation, checked.return_token_ids)
            await until_disconnected(request.receive, generation.accepted())
            if not checked.stream:
                return json_response(await until_disconnected(request.receive, answer.whole()))
            include_usage = checked.stream_options is not None and checked.stream_options.include_usage
            streaming = True
            return SseResponse(answer, generation, include_usage=include_usage)
        finally:
            if not streaming:
                generation.close()

    @contextmanager
    def _refusals_traced(self, request: Request, operation: str) -> Iterator[None]:
        """What is refused before it has a record leaves a span as well, without a model in its name."""
        began = now()
        try:
            yield
        except TandemError as error:
            span = self._tracing.start(operation, request.headers.get("traceparent", ""), at=began, server=True)
            span.set({"gen_ai.operation.name": operation, "gen_ai.provider.name": "tandem", "error.type": error.code})
            span.end(error=error.code)
            raise

    def _begin(self, request: Request, answer_type: type[Answer], request_id: str, model: str) -> RequestTelemetry:
        """The trace's root; a client that traces, too, is its parent."""
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
        peer = self._client.dispatcher.peer
        if peer is None:
            raise unavailable("the model is still being loaded")
        return peer.engine

    def _served(self, model: str | None) -> str:
        """The name to answer with. Raises TandemError (NOT_FOUND) for a model that is not served."""
        names = self._facts().served_model_names
        if model is None:
            return names[0]
        if model not in names:
            raise TandemError(
                "NOT_FOUND", f"the model {model!r} is not served here; served: {', '.join(names)}", "model"
            )
        return model

    def _card(self, name: str) -> dict[str, Any]:
        facts = self._facts()
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "tandem",
            "root": facts.served_model_names[0],
            "max_model_len": facts.max_model_len,
        }
