"""ASGI middleware: the limit on the body of each request, in bytes. routes.PATHS has it for every path.

A body that is longer is never held: it is refused by its Content-Length, or while it is read.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.rpc.errors import TandemError
from services.shim.responses import error_response
from services.shim.routes import PATHS, SMALL_BODY_BYTES

_LIMITS = {one.path: one.max_body_bytes for one in PATHS}
MAX_DIGITS = 18  # a longer Content-Length is above every limit, and slow to read


def body_limit(path: str, max_request_body_bytes: int) -> int:
    """Returns the most bytes that the body of a request to this path may have."""
    return _LIMITS.get(path, SMALL_BODY_BYTES) or max_request_body_bytes


class BodyLimitMiddleware:
    """Answers 413 to a body above the limit of its path. `max_request_body_bytes`: --max-request-body-bytes."""

    def __init__(self, app: ASGIApp, max_request_body_bytes: int) -> None:
        self._app = app
        self._most = max_request_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = body_limit(scope["path"], self._most)
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                if len(value) > MAX_DIGITS or int(value) > limit:
                    await error_response(self._too_large(limit))(scope, receive, send)
                else:
                    await self._app(scope, receive, send)  # the server reads no more than this length
                return
        received = 0

        async def limited() -> Message:
            """Returns the next message. Raises TandemError once the body is longer than the limit."""
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise self._too_large(limit)
            return message

        await self._app(scope, limited, send)

    def _too_large(self, limit: int) -> TandemError:
        setter = "max_request_body_bytes" if limit == self._most else "its path"
        return TandemError("OUT_OF_RANGE", f"the request body is larger than {limit} bytes, the limit set by {setter}")
