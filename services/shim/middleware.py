"""ASGI middleware: counts responses by method, path and status, and checks the API key."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.rpc.errors import TandemError
from services.shim.api_key import ApiKey
from services.shim.metrics import ShimMetrics
from services.shim.responses import SEND_BODY, error_response
from services.shim.routes import method_label, path_label, rule_of


class CountMiddleware:
    """Counts every HTTP response in tandem:http_requests, by method, path and status.

    Keeps the server's own `send` in scope[SEND_BODY], for SseResponse.
    """

    def __init__(self, app: ASGIApp, metrics: ShimMetrics) -> None:
        self._app = app
        self._requests = metrics.http_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SEND_BODY] = send

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                method, path = method_label(scope["method"]), path_label(scope["path"])
                self._requests.labels(method, path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, count if scope["type"] == "http" else send)


class ApiKeyMiddleware:
    """Answers 401 to a request without `Authorization: Bearer API_KEY`, on paths that need the key (routes.RULES)."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = ApiKey(api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"") if scope["type"] == "http" else b""
        if scope["type"] == "http" and rule_of(scope["path"]).needs_key and not self._key.is_in(given):
            error = TandemError("UNAUTHENTICATED", "the API key is missing or wrong", reason="invalid_api_key")
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)
