"""Asks for the media type of JSON: a web page cannot send it to another site without that site's consent.

https://fetch.spec.whatwg.org/#cors-safelisted-request-header
"""

from starlette.requests import Request
from starlette.responses import Response

from services.rpc.errors import invalid
from services.shim.routes import Handler

JSON = "application/json"
MAX_SHOWN = 100


def json_only(handler: Handler) -> Handler:
    """Returns the handler for requests with a body in JSON. It raises TandemError (INVALID_ARGUMENT, as vLLM) for any
    other media type. Parameters, as charset, are ignored: JSON is UTF-8."""

    async def checked(request: Request) -> Response:
        given = request.headers.get("content-type", "")
        if given.partition(";")[0].strip().lower() != JSON:
            what = f"is {given[:MAX_SHOWN]!r}" if given else "is missing"
            raise invalid(
                f"the header Content-Type {what}, but only {JSON} is allowed; with curl: -H 'Content-Type: {JSON}'",
                reason="unsupported_content_type",
            )
        return await handler(request)

    return checked
