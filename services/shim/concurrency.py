"""How much this process takes on at once: HTTP requests that ask for tokens, and the bytes of their bodies.

Both are counted as they come in, before anything is done with them, and until their answer is over. Health checks,
metrics and the like are not counted: they must be answered most of all when there is too much to do.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.rpc.errors import too_much
from services.shim.metrics import ShimMetrics
from services.shim.responses import error_response
from services.shim.routes import rule_of

MAX_HELD_BYTES = 512 * 1024 * 1024  # of all bodies; what is made of them takes a few times as much
RETRY_SECONDS = 1


class ConcurrencyMiddleware:
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
                f"{self._limit} requests are under way, and max_concurrent_requests allows no more", RETRY_SECONDS
            )
            await error_response(error)(scope, receive, send)
            return
        held = 0

        async def counted() -> Message:
            """Raises TandemError, while the body is being read."""
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            self._num_bytes += size
            if size and self._num_bytes > MAX_HELD_BYTES:
                self._rejections.labels("body_bytes").inc()
                raise too_much(
                    f"the requests under way hold {MAX_HELD_BYTES} bytes, which is all there may be", RETRY_SECONDS
                )
            return message

        self._num_requests += 1
        try:
            await self._app(scope, counted, send)
        finally:
            self._num_requests -= 1
            self._num_bytes -= held
