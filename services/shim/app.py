"""The shim's ASGI application: its middleware, its routes, its error handlers."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from services.options.declarations import ShimOptions
from services.shim.apis.all import APIS
from services.shim.body_limit import BodyLimitMiddleware
from services.shim.concurrency import ConcurrencyMiddleware
from services.shim.endpoints import Endpoints
from services.shim.error_handlers import ERROR_HANDLERS
from services.shim.generations import Generations
from services.shim.in_progress import InProgress
from services.shim.metrics import ShimMetrics
from services.shim.middleware import ApiKeyMiddleware, CountMiddleware
from services.shim.preparer import Preparer
from services.shim.reference.docs_page import docs_endpoint
from services.shim.reference.openapi import openapi_endpoint
from services.shim.request_ids import RequestIdMiddleware
from services.shim.routes import DOCS, HEALTH, METRICS, MODEL, MODELS, OPENAPI, RESET_PREFIX_CACHE, VERSION
from services.shim.scrape import Scrape


def make_app(
    generations: Generations,
    preparer: Preparer,
    in_progress: InProgress,
    options: ShimOptions,
    metrics: ShimMetrics,
    scrape: Scrape,
) -> ASGIApp:
    """Returns the application. Its handlers start each request's Generation with `generations`, and close it."""
    endpoints = Endpoints(generations, preparer, scrape)
    facts = generations.client.facts
    app = Starlette(
        routes=[
            *(api.path.route(endpoints.generate(api)) for api in APIS),
            MODELS.route(endpoints.models),
            MODEL.route(endpoints.model),
            RESET_PREFIX_CACHE.route(endpoints.reset_prefix_cache),
            HEALTH.route(endpoints.health),
            VERSION.route(endpoints.version),
            METRICS.route(endpoints.metrics),
            OPENAPI.route(openapi_endpoint(facts, ignore_unknown_fields=options.ignore_unknown_fields)),
            DOCS.route(docs_endpoint()),
        ],
        middleware=[  # from the outside inwards
            *([Middleware(ApiKeyMiddleware, options.api_key)] if options.api_key else []),
            Middleware(ConcurrencyMiddleware, in_progress),
            Middleware(BodyLimitMiddleware, options.max_request_body_bytes),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
    # Outside of Starlette, which answers a bug with 500 outside of its own middleware.
    with_ids: ASGIApp = RequestIdMiddleware(app) if options.enable_request_id_headers else app
    return CountMiddleware(with_ids, metrics)
