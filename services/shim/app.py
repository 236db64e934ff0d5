"""The HTTP routes, and everything that stands between a client's bytes and a checked request."""

import hmac
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.options.declarations import ShimOptions
from services.rpc.errors import TandemError, invalid, too_long, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.mailbox import MAX_MERGED_BYTES
from services.rpc.transport import MAX_MESSAGE_BYTES
from services.shim.answer import Answer, ChatAnswer, CompletionAnswer
from services.shim.concurrency import ConcurrencyMiddleware
from services.shim.generation import Generation, TokenizerClient
from services.shim.metrics import ShimMetrics
from services.shim.responses import (
    SEND_BODY,
    ClientGone,
    SseResponse,
    error_response,
    json_response,
    until_disconnected,
)
from services.shim.schema import ChatRequest, CompletionRequest, GenerationRequest, check_counts, first_error
from services.shim.scrape import Scrape
from services.shim.telemetry import RequestTelemetry
from services.shim.translate import chat_submit, completion_submits
from services.telemetry.logs import fields
from services.telemetry.spans import Tracing, now
from services.version import VERSION

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_SUBMIT_BYTES = MAX_MESSAGE_BYTES - 2 * MAX_MERGED_BYTES  # others may stand before it in the same message
RESET = "/reset_prefix_cache"
PATHS = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/version", "/metrics", RESET}
METHODS = {"GET", "HEAD", "POST"}
RequestT = TypeVar("RequestT", bound=GenerationRequest)


class Endpoints:
    def __init__(self, client: TokenizerClient, metrics: ShimMetrics, scrape: Scrape, tracing: Tracing) -> None:
        self._client = client
        self._metrics = metrics
        self._scrape = scrape
        self._tracing = tracing

    async def chat(self, request: Request) -> Response:
        with self._refusals_traced(request, ChatAnswer.operation):
            raw = await _read_json(request)
            checked = _check(ChatRequest, raw)
            model = self._served(checked.model)
            request_id = ChatAnswer.prefix + uuid.uuid4().hex
            submit = chat_submit(checked, raw, request_id, self._client.dispatcher.new_handle)
            _check_size(submit)
        return await self._answer(request, checked, model, request_id, [submit], ChatAnswer)

    async def completions(self, request: Request) -> Response:
        with self._refusals_traced(request, CompletionAnswer.operation):
            raw = await _read_json(request)
            _check_token_counts(raw.get("prompt"), self._facts().max_model_len)
            checked = _check(CompletionRequest, raw)
            model = self._served(checked.model)
            request_id = CompletionAnswer.prefix + uuid.uuid4().hex
            submits = completion_submits(checked, request_id, self._client.dispatcher.new_handle)
            for submit in submits:
                _check_size(submit)
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
        generation = Generation(self._client, submits, record)
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


async def _read_json(request: Request) -> dict[str, Any]:
    """The body as a JSON object without its nulls: null means absent. Raises TandemError."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise invalid(f"the request body is larger than {MAX_BODY_BYTES} bytes")
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the request body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise invalid("the request body is not a JSON object")
    return {name: value for name, value in content.items() if value is not None}


def _check(request_type: type[RequestT], raw: dict[str, Any]) -> RequestT:
    check_counts(raw)
    try:
        return request_type.model_validate(raw)
    except ValidationError as error:
        raise first_error(error.errors()) from error


def _check_size(submit: text_pb2.TextSubmit) -> None:
    """A number written in three characters may take twenty on its way: what no message can hold would end the stream
    that all requests share. Raises TandemError."""
    size = submit.ByteSize()
    if size > MAX_SUBMIT_BYTES:
        raise invalid(f"the request takes {size} bytes between the processes, but at most {MAX_SUBMIT_BYTES} fit")


def _check_token_counts(prompt: Any, max_model_len: int) -> None:
    """Token ids that cannot fit are refused before anything is done with them, one by one. Raises TandemError."""
    if not isinstance(prompt, list):
        return
    for ids in prompt if prompt and isinstance(prompt[0], list) else [prompt]:
        if isinstance(ids, list) and len(ids) >= max_model_len and not isinstance(ids[0], str):
            raise too_long(len(ids), max_model_len)


class CountMiddleware:
    """Every answer, with its status. Paths that nobody has named are one: clients must not make series."""

    def __init__(self, app: ASGIApp, metrics: ShimMetrics) -> None:
        self._app = app
        self._requests = metrics.http_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SEND_BODY] = send

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in PATHS else "other"
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._requests.labels(method, path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, count if scope["type"] == "http" else send)


class ApiKeyMiddleware:
    """What costs work needs the key: /v1 and the reset. Health checks, version and metrics go without."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(("/v1", RESET)):
            scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if not hmac.compare_digest(given, self._expected) or scheme.lower() != b"bearer":
                error = TandemError("UNAUTHENTICATED", "the API key is missing or wrong")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _on_tandem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    found = fields(path=request.url.path, code=error.code, param=error.param)  # the message may quote the request
    log.info("request refused", extra=found)
    return error_response(error)


async def _on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = {"message": error.detail, "type": "invalid_request_error", "param": None, "code": None}
    return json_response({"error": body}, error.status_code, error.headers)


async def _on_bug(request: Request, error: Exception) -> Response:
    return error_response(TandemError("INTERNAL", "the server failed at this request"))


def make_app(
    client: TokenizerClient, options: ShimOptions, metrics: ShimMetrics, scrape: Scrape, tracing: Tracing
) -> ASGIApp:
    middleware = [
        Middleware(ConcurrencyMiddleware, max_concurrent_requests=options.max_concurrent_requests, metrics=metrics)
    ]
    if options.api_key:
        middleware.insert(0, Middleware(ApiKeyMiddleware, api_key=options.api_key))
    endpoints = Endpoints(client, metrics, scrape, tracing)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{model:path}", endpoints.model),
            Route("/health", endpoints.health),
            Route("/version", endpoints.version),
            Route("/metrics", endpoints.metrics),
            Route(RESET, endpoints.reset_prefix_cache, methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers={
            TandemError: _on_tandem_error,
            ClientGone: _on_client_gone,
            ClientDisconnect: _on_client_gone,  # while its body was still coming
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )
    return CountMiddleware(app, metrics)  # around everything, so that it sees the answers to bugs as well
