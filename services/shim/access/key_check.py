"""ASGI middleware that asks for the API key. services/shim/routes.py says which routes are open or administer."""

from starlette.types import ASGIApp, Receive, Scope, Send

from services.rpc.errors import TandemError
from services.shim.access.keys import CALLER, Caller, Keys
from services.shim.responses import error_response
from services.shim.routes import administers, is_open, route_path


def unauthenticated() -> TandemError:
    return TandemError("UNAUTHENTICATED", "the API key is missing or wrong", reason="invalid_api_key")


def no_admin() -> TandemError:
    return TandemError("PERMISSION_DENIED", "this needs the key of --admin-api-key", reason="admin_key_required")


class ApiKeyMiddleware:
    """Answers 401 to a request without `Authorization: Bearer KEY`, 403 to one that administers without an admin key.

    Puts the caller into the scope (`caller_of`). Paths without a route need a key as well.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(path := route_path(scope)):
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            # With several, a proxy in front may have checked another one than this server would.
            caller = self._keys.caller_in(given[0]) if len(given) == 1 else None
            error = self._refusal(caller, path)
            if error is not None:
                await error_response(error)(scope, receive, send)
                return
            scope[CALLER] = caller
        await self._app(scope, receive, send)

    def _refusal(self, caller: Caller | None, path: str) -> TandemError | None:
        if caller is None:
            return unauthenticated()
        return no_admin() if administers(path) and not self._keys.may_administer(caller) else None
