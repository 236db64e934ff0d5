"""The part of a response's id that the client may choose: X-Request-Id, or the field request_id, as in vLLM.

RequestIdMiddleware sends it back as a header, with errors and on all other routes as well.
"""

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.shim.apis.request import MAX_REQUEST_ID

HEADER = "x-request-id"
REQUEST_ID = "tandem.request_id"  # scope key of the id that a handler used
_VALID = re.compile(rf"[!-~]{{1,{MAX_REQUEST_ID}}}")


def request_id_of(request: Request, from_body: str | None) -> str:
    """Returns the header's id, else `from_body`, else a random one. Ids are labels: nothing is looked up by them.

    Keeps it in the request's scope, for RequestIdMiddleware. A header that is too long or has characters other than
    visible ASCII is passed over: a proxy may have set it.
    """
    found = _valid_header(request.scope) or from_body or _random_id()
    request.scope[REQUEST_ID] = found
    return found


class RequestIdMiddleware:
    """Adds X-Request-Id to every response: the id that the handler used, else the request's own, else a random one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = scope.get(REQUEST_ID) or _valid_header(scope) or _random_id()
            await send(message)

        await self._app(scope, receive, send_with_id if scope["type"] == "http" else send)


def _valid_header(scope: Scope) -> str | None:
    given = Request(scope).headers.get(HEADER, "")
    return given if _VALID.fullmatch(given) else None


def _random_id() -> str:
    return uuid.uuid4().hex
