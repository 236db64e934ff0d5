"""An asynchronous client for programs. If the tokenizer or engine of a call dies, the call goes on at the next one,
with the tokens that it would have had.

Knows the messages of Generate, but no role. docs/grpc.md shows how to use it and how to resume without it.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import grpc

from services.rpc.channel_options import CHANNEL_OPTIONS
from services.rpc.generated import engine_pb2, engine_pb2_grpc, text_pb2, text_pb2_grpc
from services.rpc.progress import Progress, Whole
from services.rpc.status import lacks_process, retry_seconds
from services.security.credential_files import TLS_OPTIONS, read_credentials

RequestT = TypeVar("RequestT", text_pb2.GenerateTextRequest, engine_pb2.GenerateTokensRequest)
ResponseT = TypeVar("ResponseT", text_pb2.GenerateTextResponse, engine_pb2.GenerateTokensResponse)
Metadata = Sequence[tuple[str, str | bytes]]
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)  # a new client does not share another one's pause to reconnect
DEATHS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # a program that cancels gets CancelledError
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
PAUSE_SECONDS = 0.1  # after the second death in a row without a token; longer after each further one


class _Client(Generic[RequestT, ResponseT]):
    _stub_type: Any
    _response_type: Any

    def __init__(
        self, *targets: str, credentials: str | Path | None = None, resume_seconds: float = 60.0, max_deaths: int = 5
    ) -> None:
        """`targets`: unix:/path or host:port; calls are spread over them. `credentials`: the directory that `tandem
        internal-credentials` writes, for host:port. A call fails after `resume_seconds` without a callee, and after
        `max_deaths` callees in a row that died without a new token.

        Raises ValueError without a target, or without credentials for host:port; OSError if they cannot be read."""
        if not targets:
            raise ValueError("a client needs at least one target: unix:/path or host:port")
        self._channels = [_channel(target, credentials) for target in targets]
        self._stubs = [self._stub_type(channel) for channel in self._channels]
        self._turns = itertools.count()
        self._resume_seconds, self._max_deaths = resume_seconds, max_deaths

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Calls that still run fail."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    @property
    def stub(self) -> Any:
        """The gRPC stub of a connected target, if there is one: for the service's other methods, without retries."""
        return self._stubs[self._connected() or 0]

    async def generate(
        self, request: RequestT, *, timeout: float | None = None, metadata: Metadata = ()
    ) -> AsyncGenerator[ResponseT, None]:
        """Yields the responses to a request: one if it does not set `stream`. `timeout`, in seconds, is the deadline of
        all its calls together. Raises grpc.aio.AioRpcError with the status of the last call; ConnectionError if a call
        ends with OK, but without its last response."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        async with contextlib.aclosing(self._resumed(Progress(request), deadline, metadata)) as responses:
            if request.stream:
                async for response in responses:
                    yield response
                return
            whole = Whole(self._response_type())
            async for response in responses:
                whole.add(response)
        yield whole.response()

    async def _resumed(
        self, progress: Progress, deadline: float | None, metadata: Metadata
    ) -> AsyncGenerator[ResponseT, None]:
        clock = asyncio.get_running_loop().time
        num_deaths, pause, give_up = 0, 0.0, clock() + self._resume_seconds
        while True:
            index = await self._connect(min(deadline or give_up, give_up) - clock())
            timeout = None if deadline is None else max(0.0, deadline - clock())
            call = self._stubs[index or 0].Generate(progress.request, timeout=timeout, metadata=tuple(metadata))
            try:
                async for response in call:
                    num_deaths = 0 if any(delta.token_ids for delta in response.choices) else num_deaths
                    if progress.add(response):
                        yield response
                    if progress.is_done:
                        return  # whatever the status
                raise ConnectionError("the call ended without its last response")
            except grpc.aio.AioRpcError as error:
                if error.code() in DEATHS and index is not None:
                    num_deaths += 1
                    if num_deaths >= self._max_deaths:
                        raise
                    pause, give_up = PAUSE_SECONDS * (2 ** (num_deaths - 1) - 1), clock() + self._resume_seconds
                    progress.resume()
                elif clock() < give_up and (lacks_process(error) or (progress.is_resumed and error.code() is FULL)):
                    pause = retry_seconds(error)
                else:
                    raise
                await asyncio.sleep(pause if deadline is None else max(0.0, min(pause, deadline - clock())))
            finally:
                call.cancel()

    def _connected(self) -> int | None:
        """Returns the index of a connected target, each in its turn; None if there is none. The others reconnect."""
        states = [channel.get_state(try_to_connect=True) for channel in self._channels]
        ready = [index for index, state in enumerate(states) if state is grpc.ChannelConnectivity.READY]
        return ready[next(self._turns) % len(ready)] if ready else None

    async def _connect(self, seconds: float) -> int | None:
        """Returns the index of a connected target, for which it waits; None if there is none within `seconds`."""
        if (index := self._connected()) is not None:
            return index
        waiting = [asyncio.ensure_future(channel.channel_ready()) for channel in self._channels]
        try:
            await asyncio.wait(waiting, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        return self._connected()


def _channel(target: str, credentials: str | Path | None) -> grpc.aio.Channel:
    options = [*CHANNEL_OPTIONS, OWN_CONNECTION]
    if target.startswith("unix:"):
        return grpc.aio.insecure_channel(target, options)
    if credentials is None:
        raise ValueError(f"{target}: TCP needs `credentials`, the directory that tandem internal-credentials writes")
    return grpc.aio.secure_channel(target, read_credentials(Path(credentials)), [*options, *TLS_OPTIONS])


class TextClient(_Client[text_pb2.GenerateTextRequest, text_pb2.GenerateTextResponse]):
    """Calls tokenizers: messages, text or token ids in; text, token ids and logprobs out."""

    _stub_type, _response_type = text_pb2_grpc.TextServiceStub, text_pb2.GenerateTextResponse


class EngineClient(_Client[engine_pb2.GenerateTokensRequest, engine_pb2.GenerateTokensResponse]):
    """Calls engines: token ids in, token ids and logprobs out."""

    _stub_type, _response_type = engine_pb2_grpc.EngineServiceStub, engine_pb2.GenerateTokensResponse
