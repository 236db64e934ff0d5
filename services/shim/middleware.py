"""ASGI middleware: counts responses by method, path and status."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.shim.metrics import ShimMetrics
from services.shim.responses import SEND_BODY
from services.shim.routes import method_label, path_label, route_path


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
                method, path = method_label(scope["method"]), path_label(route_path(scope))
                self._requests.labels(method, path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, count if scope["type"] == "http" else send)
