"""Refuses requests that a web page of another site makes in its visitor's browser, unless its origin is allowed.

Browsers name the page's origin in every such request that changes something; other programs send no Origin header.
https://fetch.spec.whatwg.org/#origin-header
"""

import logging
from collections.abc import Collection

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from services.options.declarations import ShimOptions
from services.rpc.errors import TandemError
from services.shim.access.hosts import MAX_SHOWN
from services.shim.responses import error_response
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
ANY = "*"
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
EXPOSED = ("x-request-id", "retry-after", "tandem-ignored-keywords")  # response headers that a page's script may read


def with_cors(app: ASGIApp, options: ShimOptions) -> ASGIApp:
    """Returns the application with CORS headers for the allowed origins; without any, `app` itself.

    It answers the preflight request of an allowed origin itself: browsers send that without a key.
    """
    if not options.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=options.allowed_origins,
        allow_methods=options.allowed_methods,
        allow_headers=options.allowed_headers,
        allow_credentials=options.allow_credentials,
        expose_headers=EXPOSED,
    )


class OriginMiddleware:
    """Answers 403 to a request with an Origin that is neither the server's own nor in `allowed`."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)
        self._refusals = RateLimitedLog(log, logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ANY not in self._allowed:
            headers = scope["headers"]
            host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "")
            for origin in [value.decode("latin-1") for name, value in headers if name == b"origin"]:
                if origin not in self._allowed and not is_own(origin, host):
                    await error_response(self._refusal(origin[:MAX_SHOWN]))(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _refusal(self, origin: str) -> TandemError:
        self._refusals.log("a request of a web page with Origin %r was refused; --allowed-origins accepts it", origin)
        return TandemError(
            "PERMISSION_DENIED",
            f"the request comes from a web page of {origin!r}, which is not allowed here; see --allowed-origins",
            reason="origin_not_allowed",
        )


def is_own(origin: str, host: str) -> bool:
    """Returns whether a page of `origin` came from the server that the request names in its Host header.

    http and https count as one: behind a proxy that ends TLS, the server does not know which of them the page had.
    """
    scheme, _, authority = origin.partition("://")
    port = DEFAULT_PORTS.get(scheme)
    return port is not None and authority != "" and authority == host.lower().removesuffix(port)
