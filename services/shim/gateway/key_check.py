"""Refuses every RPC without an API key: health checks and reflection, too."""

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import grpc

from services.rpc.errors import TandemError
from services.rpc.status import abort
from services.shim.access.key_check import no_admin, unauthenticated
from services.shim.access.keys import ANYONE, Caller, Keys
from services.shim.gateway.service_name import ENGINE_SERVICE

HandlerCallDetails = Any  # grpc.HandlerCallDetails: the method's path and the call's metadata
ADMINISTERING = frozenset({f"/{ENGINE_SERVICE}/FlushCache"})
# Of the call whose handler runs: an interceptor and the handler behind it run in one task.
caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


class KeyCheck(grpc.aio.ServerInterceptor):
    """Ends an RPC with UNAUTHENTICATED unless its metadata has `authorization: Bearer KEY`, and one that administers
    with PERMISSION_DENIED unless KEY may. Sets `caller` for the others."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._unauthenticated, self._no_admin = _refusing(unauthenticated()), _refusing(no_admin())

    async def intercept_service(
        self, continuation: Callable[[HandlerCallDetails], Awaitable[Any]], handler_call_details: HandlerCallDetails
    ) -> Any:
        found = self._keys.caller_in(_authorization(handler_call_details.invocation_metadata))
        if found is None:
            return self._unauthenticated
        if handler_call_details.method in ADMINISTERING and not self._keys.may_administer(found):
            return self._no_admin
        caller.set(found)
        return await continuation(handler_call_details)


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    given = dict(metadata).get("authorization", "")
    return given.encode() if isinstance(given, str) else given


def _refusing(error: TandemError) -> Any:
    """Returns the handler of a refused RPC. That of a stream need not read the request, which may be large."""

    async def refuse(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)
