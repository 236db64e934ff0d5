"""ASGI middleware: counts HTTP requests against the shim's limits on work in progress (in_progress.py).

A request counts from its headers to the end of its response. Only POST requests to paths that routes.is_limited
names count.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.rpc.errors import TandemError
from services.shim.in_progress import Hold, InProgress, no_hold
from services.shim.responses import error_response
from services.shim.routes import is_limited, route_path

HOLD = "tandem.hold"  # scope key of the request's Hold


def hold_of(scope: Scope) -> Hold:
    """Returns the function that counts the bytes of a request, for the handlers."""
    hold: Hold = scope.get(HOLD, no_hold)
    return hold


class ConcurrencyMiddleware:
    """Answers 429 to a counted request beyond a limit, also if a part of its body is what exceeds it."""

    def __init__(self, app: ASGIApp, in_progress: InProgress) -> None:
        self._app = app
        self._in_progress = in_progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not is_limited(route_path(scope)):
            await self._app(scope, receive, send)
            return
        try:
            self._in_progress.check()
        except TandemError as error:
            await error_response(error)(scope, receive, send)
            return
        with self._in_progress.request() as hold:
            scope[HOLD] = hold

            async def counted() -> Message:
                """Returns the next message. Raises TandemError if with it the bodies exceed their limit in total."""
                message = await receive()
                hold(len(message.get("body", b"")))
                return message

            await self._app(scope, counted, send)
