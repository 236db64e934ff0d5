"""The handlers of all HTTP routes. The paths are in routes.py."""

import time

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from services.rpc.errors import TandemError, invalid
from services.shim.access.keys import caller_of
from services.shim.apis.all import API_OF
from services.shim.apis.api import Api
from services.shim.apis.translation import AnyTranslation
from services.shim.concurrency import hold_of
from services.shim.generations import Generations
from services.shim.ignored_keywords import ignored_header
from services.shim.in_progress import Hold
from services.shim.models import ModelCard, model_card
from services.shim.prepare import Prepared
from services.shim.request_ids import request_id_of
from services.shim.request_reader import RequestReader, traceparent_of
from services.shim.responses import SseResponse, json_response, until_disconnected, whole_response
from services.shim.routes import Handler
from services.shim.scrape import Scrape
from services.version import VERSION


class Endpoints:
    """One handler method per route; one object per process.

    A handler raises TandemError to refuse a request, ClientGone or ClientDisconnect if the client disconnects.
    """

    def __init__(self, generations: Generations, reader: RequestReader, scrape: Scrape) -> None:
        self._generations = generations
        self._reader = reader
        self._client = generations.client
        self._scrape = scrape
        self._began = int(time.time())

    def generate(self, translation: AnyTranslation, operation: str) -> Handler:
        """Returns the handler of a route that generates. `operation`: the name of a refusal's span."""

        async def handler(request: Request) -> Response:
            return await self._generate(translation, operation, request)

        return handler

    async def models(self, request: Request) -> Response:
        names = self._generations.facts().served_model_names
        return json_response({"object": "list", "data": [self._model_card(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            return await self.models(request)
        return json_response(self._model_card(self._generations.served_name(name)))

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

    async def _generate(self, translation: AnyTranslation, operation: str, request: Request) -> Response:
        """Reads and checks the request, submits it and answers with the full JSON response or an SSE stream.

        With `stream`, it returns as soon as an engine accepts a choice or a choice ends. Raises, before it returns,
        TandemError for a wrong request, too many choices, no tokenizer or a failed choice, and ClientGone if the client
        disconnects.
        """
        prepared = await self._reader.read(request, translation, operation)
        api = API_OF[prepared.facts.translation]
        try:
            return await self._respond(request, api, prepared, hold_of(request.scope))
        except TandemError as error:
            raise api.at_fault(error) from None  # it may be the same one

    async def _respond(self, request: Request, api: Api, prepared: Prepared, hold: Hold) -> Response:
        """Starts one call per submit, and returns the response. Raises as `_generate`."""
        facts, submits = prepared.facts, prepared.submits
        request_id = api.id_prefix + request_id_of(request, facts.request_id)
        prepared.submits = []  # the generation has its own copies
        generation = self._generations.start(
            api.operation,
            request_id,
            facts.model,
            traceparent_of(request),
            submits,
            key_name=caller_of(request.scope).name,
            bulks=prepared.bulk,
            hold=hold,
        )
        del submits
        streaming = False
        try:
            await generation.start_others()
            answer = api.answer(request_id, facts.model, generation, facts.answer)
            await until_disconnected(request.receive, generation.wait_accepted())
            if not facts.stream:
                content = await until_disconnected(request.receive, answer.full_response())
                return whole_response(content, ignored_header(generation.ignored_keywords))
            streaming = True
            headers = ignored_header(generation.ignored_keywords)
            return SseResponse(answer, generation, include_usage=facts.include_usage, headers=headers)
        finally:
            if not streaming:
                generation.close()

    def _model_card(self, name: str) -> ModelCard:
        facts = self._generations.facts()
        return model_card(name, facts.model or facts.served_model_names[0], facts.max_model_len, self._began)
