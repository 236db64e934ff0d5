"""The handlers of all HTTP routes. The paths are in routes.py."""

import time

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from services.options.declarations import ShimOptions
from services.rpc.errors import TandemError, invalid
from services.rpc.generated import text_pb2
from services.shim.access.keys import caller_of
from services.shim.apis.answer import AnswerOptions
from services.shim.apis.api import Api
from services.shim.apis.request import GenerationRequest
from services.shim.apis.submit import SubmitContext
from services.shim.body import read_body
from services.shim.generations import Generations
from services.shim.ignored_keywords import ignored_header
from services.shim.models import ModelCard, model_card
from services.shim.parsing import check_submit_size, validate
from services.shim.request_ids import request_id_of
from services.shim.responses import SseResponse, json_response, until_disconnected
from services.shim.routes import Handler
from services.shim.scrape import Scrape
from services.version import VERSION


class Endpoints:
    """One handler method per route; one object per process.

    A handler raises TandemError to refuse a request, ClientGone or ClientDisconnect if the client disconnects.
    """

    def __init__(self, generations: Generations, scrape: Scrape, options: ShimOptions) -> None:
        self._generations = generations
        self._client = generations.client
        self._scrape = scrape
        self._options = options
        self._began = int(time.time())

    def generate(self, api: Api) -> Handler:
        """Returns the handler of a route that generates text."""

        async def handler(request: Request) -> Response:
            return await self._generate(api, request)

        return handler

    async def models(self, request: Request) -> Response:
        names = self._generations.facts().served_model_names
        return json_response({"object": "list", "data": [self._model_card(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            return await self.models(request)
        return json_response(self._model_card(self._generations.served_name(name)))

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

    async def _generate(self, api: Api, request: Request) -> Response:
        """Reads and checks the request, submits it and answers with the full JSON response or an SSE stream.

        With `stream`, it returns as soon as an engine accepts a choice or a choice ends. Raises, before it returns,
        TandemError for a wrong request, too many choices, no tokenizer or a failed choice, and ClientGone if the client
        disconnects.
        """
        with self._generations.trace_refusals(api.operation, _traceparent(request)):
            body = await read_body(request)
            checked = validate(api.request, body.fields, self._client.facts(), self._options.ignore_unknown_fields)
            model = self._generations.served_name(checked.model)
            request_id = api.id_prefix + request_id_of(request, checked.request_id)
            context = SubmitContext(
                request_id,
                self._client.dispatcher.new_handle,
                self._generations.facts(),
                self._options.exclude_tools_when_tool_choice_none,
                cache_group=caller_of(request.scope).group,
            )
            submits = api.submits(checked, body, context)
            for submit in submits:
                check_submit_size(submit)
        try:
            return await self._respond(request, api, checked, model, context.request_id, submits)
        except TandemError as error:
            raise api.at_fault(error) from error

    async def _respond(
        self,
        request: Request,
        api: Api,
        checked: GenerationRequest,
        model: str,
        request_id: str,
        submits: list[text_pb2.TextSubmit],
    ) -> Response:
        """Starts one call per submit, and returns the response. Raises as `_generate`."""
        key_name = caller_of(request.scope).name
        generation = self._generations.start(api.operation, request_id, model, _traceparent(request), submits, key_name)
        streaming = False
        try:
            options = self._answer_options(checked)
            answer = api.answer(request_id, model, self._generations.facts().numerics_id, generation, options)
            await until_disconnected(request.receive, generation.wait_accepted())
            if not checked.stream:
                content = await until_disconnected(request.receive, answer.full_response())
                return json_response(content, headers=ignored_header(generation.ignored_keywords))
            streaming = True
            include_usage = checked.include_usage or self._options.enable_force_include_usage
            headers = ignored_header(generation.ignored_keywords)
            return SseResponse(answer, generation, include_usage=include_usage, headers=headers)
        finally:
            if not streaming:
                generation.close()

    def _answer_options(self, checked: GenerationRequest) -> AnswerOptions:
        return AnswerOptions(
            token_ids=checked.return_token_ids,
            tokens_as_token_ids=checked.return_tokens_as_token_ids,
            effective_parameters=checked.return_effective_parameters,
            continuous_usage=checked.continuous_usage or self._options.enable_force_include_usage,
            prompt_tokens_details=self._options.enable_prompt_tokens_details,
            response_role=checked.role_of_answer(self._options.response_role),
            show_reasoning=checked.show_reasoning,
            older_function_call=checked.older_function_call,
            named_call=checked.named_call,
        )

    def _model_card(self, name: str) -> ModelCard:
        facts = self._generations.facts()
        return model_card(name, facts.model or facts.served_model_names[0], facts.max_model_len, self._began)


def _traceparent(request: Request) -> str:
    """Returns the W3C trace context of the client's span; empty: none."""
    return str(request.headers.get("traceparent", ""))
