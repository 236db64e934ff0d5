"""ASGI middleware: limits the requests in progress and the total size of their bodies.

A request counts from its headers to the end of its response. Only POST requests to paths that routes.RULES marks as
limited count.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.rpc.errors import too_much
from services.shim.metrics import ShimMetrics
from services.shim.responses import error_response
from services.shim.routes import rule_of

MAX_HELD_BYTES = 512 * 1024 * 1024  # of all bodies; the parsed requests take several times as much
RETRY_SECONDS = 1


class ConcurrencyMiddleware:
    """Answers 429 to a counted request beyond `max_concurrent_requests`.

    Also if a part of its body brings the bodies of all counted requests above MAX_HELD_BYTES.
    """

    def __init__(self, app: ASGIApp, max_concurrent_requests: int, metrics: ShimMetrics) -> None:
        self._app = app
        self._limit = max_concurrent_requests
        self._rejections = metrics.http_rejections
        self._num_requests = 0
        self._num_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not rule_of(scope["path"]).limited:
            await self._app(scope, receive, send)
            return
        if self._num_requests >= self._limit:
            self._rejections.labels("max_concurrent_requests").inc()
            error = too_much(
                f"{self._limit} requests are in progress, the limit set by max_concurrent_requests; try again later",
                RETRY_SECONDS,
            )
            await error_response(error)(scope, receive, send)
            return
        held = 0

        async def counted() -> Message:
            """Returns the next message. Raises TandemError if with it the bodies exceed MAX_HELD_BYTES in total."""
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            self._num_bytes += size
            if size and self._num_bytes > MAX_HELD_BYTES:
                self._rejections.labels("body_bytes").inc()
                raise too_much(
                    f"the bodies of the requests in progress have more than {MAX_HELD_BYTES} bytes; try again later",
                    RETRY_SECONDS,
                )
            return message

        self._num_requests += 1
        try:
            await self._app(scope, counted, send)
        finally:
            self._num_requests -= 1
            self._num_bytes -= held
