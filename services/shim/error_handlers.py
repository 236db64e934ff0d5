"""Turns an exception raised before a response has started into an HTTP response in OpenAI's error format.

After a disconnect the response is empty and never sent. Errors within a stream are handled in responses.py.
"""

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from services.rpc.errors import TandemError
from services.shim.access.keys import caller_of
from services.shim.responses import ClientGone, error_response, json_response
from services.telemetry.logs import fields

log = logging.getLogger(__name__)
MAX_URL = 200  # characters of the path in a message


async def on_tandem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    # Without the message, which may quote the request.
    key = {"key": name} if (name := caller_of(request.scope).name) else {}
    log.info("request refused", extra=fields(path=request.url.path, code=error.code, param=error.param, **key))
    return error_response(error)


async def on_client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # never sent: the connection is closed


async def on_http_error(request: Request, error: Exception) -> Response:
    """Names the URL, because clients show a bare 404 as an unknown model. The wording is OpenAI's."""
    assert isinstance(error, HTTPException)
    message = f"Invalid URL ({request.method} {request.url.path[:MAX_URL]}): {error.detail}; /docs lists the routes"
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return json_response({"error": body}, error.status_code, error.headers)


async def on_bug(request: Request, error: Exception) -> Response:
    return error_response(TandemError("INTERNAL", "internal server error; the server's log has the details"))


ERROR_HANDLERS: dict[Any, Any] = {
    TandemError: on_tandem_error,
    ClientGone: on_client_gone,
    ClientDisconnect: on_client_gone,  # before its body was complete
    HTTPException: on_http_error,
    Exception: on_bug,
}
