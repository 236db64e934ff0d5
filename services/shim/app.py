"""The shim's ASGI application: its middleware, its routes, its error handlers."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from services.shim.access.content_type import json_only
from services.shim.access.rules import AccessRules
from services.shim.apis.all import ALL_APIS
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.translations import INVOCATION
from services.shim.body_limit import BodyLimitMiddleware
from services.shim.concurrency import ConcurrencyMiddleware
from services.shim.endpoints import Endpoints
from services.shim.error_handlers import ERROR_HANDLERS
from services.shim.generations import Generations
from services.shim.health import HealthEndpoints, ShimHealth
from services.shim.http.root_path import RootPath
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics
from services.shim.middleware import CountMiddleware
from services.shim.preparer import Preparer
from services.shim.reference.docs_page import docs_endpoint
from services.shim.reference.openapi import openapi_endpoint
from services.shim.request_ids import RequestIdMiddleware
from services.shim.request_reader import RequestReader
from services.shim.routes import (
    CHAT_RENDER,
    COMPLETIONS_RENDER,
    DETOKENIZE,
    DOCS,
    HEALTH,
    INVOCATIONS,
    LIVE,
    LOAD,
    METRICS,
    MODEL,
    MODELS,
    OPENAPI,
    PING,
    PING_BY_POST,
    READY,
    RESET_PREFIX_CACHE,
    SERVER_INFO,
    TOKENIZE,
    TOKENIZER_INFO,
    VERSION,
)
from services.shim.scrape import Scrape
from services.shim.server_endpoints import ServerEndpoints
from services.shim.text_endpoints import TextEndpoints
from services.shim.text_tools import TextTools


def make_app(
    generations: Generations,
    preparer: Preparer,
    in_progress: InProgress,
    access: AccessRules,
    metrics: ShimMetrics,
    scrape: Scrape,
) -> ASGIApp:
    """Returns the application. Its handlers start each request's Generation with `generations`, and close it."""
    options = access.options
    reader = RequestReader(generations, preparer)
    endpoints = Endpoints(generations, reader, scrape)
    text = TextEndpoints(generations, reader, TextTools(generations.client))
    health = HealthEndpoints(ShimHealth(generations.client, in_progress))
    server = ServerEndpoints(generations, in_progress, options)
    facts = generations.client.facts
    app = Starlette(
        routes=[
            *(api.path.route(json_only(endpoints.generate(api.translation, api.operation))) for api in ALL_APIS),
            INVOCATIONS.route(json_only(endpoints.generate(INVOCATION, CHAT_API.operation))),
            CHAT_RENDER.route(json_only(text.render(CHAT_API, several=False))),
            COMPLETIONS_RENDER.route(json_only(text.render(COMPLETIONS_API, several=True))),
            TOKENIZE.route(json_only(text.tokenize)),
            DETOKENIZE.route(json_only(text.detokenize)),
            TOKENIZER_INFO.route(text.tokenizer_info),
            MODELS.route(endpoints.models),
            MODEL.route(endpoints.model),
            RESET_PREFIX_CACHE.route(endpoints.reset_prefix_cache),
            LIVE.route(health.live),
            READY.route(health.ready),
            HEALTH.route(health.health),
            PING.route(health.health, PING_BY_POST),
            LOAD.route(server.load),
            VERSION.route(endpoints.version),
            SERVER_INFO.route(server.server_info),
            METRICS.route(endpoints.metrics),
            OPENAPI.route(
                openapi_endpoint(
                    facts, ignore_unknown_fields=options.ignore_unknown_fields, root_path=options.root_path
                )
            ),
            DOCS.route(docs_endpoint(options.root_path)),
        ],
        middleware=[  # from the outside inwards
            Middleware(ConcurrencyMiddleware, in_progress),
            Middleware(BodyLimitMiddleware, options.max_request_body_bytes),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
    # With a prefix, Starlette would redirect /health/ to a URL without it.
    app.router.redirect_slashes = options.root_path is None
    # Outside of Starlette, which answers a bug with 500 outside of its own middleware.
    guarded = access.around(app)
    with_ids: ASGIApp = RequestIdMiddleware(guarded) if options.enable_request_id_headers else guarded
    counted = CountMiddleware(with_ids, metrics)
    return RootPath(counted, options.root_path) if options.root_path else counted
