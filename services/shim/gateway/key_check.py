"""Refuses every RPC without the API key: health checks and reflection, too."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from services.rpc.errors import TandemError
from services.rpc.status import abort
from services.shim.api_key import ApiKey

HandlerCallDetails = Any  # grpc.HandlerCallDetails: the method's path and the call's metadata


class KeyCheck(grpc.aio.ServerInterceptor):
    """Ends an RPC with UNAUTHENTICATED unless its metadata has `authorization: Bearer KEY`."""

    def __init__(self, key: str) -> None:
        self._key = ApiKey(key)
        # A stream's handler need not read the request, which may be large.
        self._refusal: Any = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self, continuation: Callable[[HandlerCallDetails], Awaitable[Any]], handler_call_details: HandlerCallDetails
    ) -> Any:
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if not self._key.is_in(given.encode() if isinstance(given, str) else given):
            return self._refusal
        return await continuation(handler_call_details)


async def _refuse(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await abort(context, TandemError("UNAUTHENTICATED", "the API key is missing or wrong", reason="invalid_api_key"))
