"""A proxy between a program and a service: forwards the messages of Generate as bytes, and ends calls on demand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from services.rpc.transport import SERVER_OPTIONS, open_channel


@dataclass
class Forwarded:
    """One call: its request, and the number of messages that it delivered."""

    request: bytes
    num_messages: int = 0


class CallProxy:
    """Forwards Generate of `service` from `listen` to `target`. `cut(call, number)` says whether the call ends with
    UNAVAILABLE before this message; both count from 0, and a call has one message more than it delivers: its end."""

    def __init__(self, service: str, listen: str, target: str) -> None:
        self.address = listen
        self._method = f"/{service}/Generate"
        self._target = target
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        handlers = {"Generate": grpc.unary_stream_rpc_method_handler(self._forward)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(listen)
        self.reset()

    def reset(self) -> None:
        self.calls: list[Forwarded] = []
        self.cut: Callable[[int, int], bool] = lambda call, number: False
        self.alter: Callable[[int, bytes], bytes] = lambda call, message: message
        self.refuse: Callable[[int, Any], Any] | None = None  # may end a call before it is forwarded

    async def __aenter__(self) -> "CallProxy":
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def _forward(self, request: bytes, context: Any) -> None:
        number = len(self.calls)
        self.calls.append(Forwarded(request))
        own = self.calls[number]
        try:
            if self.refuse is not None:
                await self.refuse(number, context)
            async with open_channel(self._target) as channel:
                call = channel.unary_stream(self._method)(request)
                try:
                    await self._copy(number, own, call, context)
                finally:
                    call.cancel()
        except asyncio.CancelledError:
            pass  # the program hung up
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details(), tuple(error.trailing_metadata()))

    async def _copy(self, number: int, own: Forwarded, call: Any, context: Any) -> None:
        async for message in call:
            await self._may_end(number, own, context)
            await context.write(self.alter(number, message))
            own.num_messages += 1
        await self._may_end(number, own, context)

    async def _may_end(self, number: int, own: Forwarded, context: Any) -> None:
        if self.cut(number, own.num_messages):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
