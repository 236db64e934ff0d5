"""The gateway on a real port, with the test as the tokenizer, and a gRPC client of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from services.shim.gateway.server import GatewayServer
from services.shim.gateway.servicer import add_servicer
from services.shim.health import ShimHealth
from tests.addresses import HOST, at
from tests.shim.harness import Shim

SECONDS = 10.0  # for one call


@contextlib.asynccontextmanager
async def gateway(shim: Shim, *, reflection: bool = False) -> AsyncIterator[grpc.aio.Channel]:
    """Yields a channel to the gateway of `shim`, which asks for the keys of the shim."""
    health = ShimHealth(shim.client, shim.in_progress)
    server = GatewayServer(health, shim.access.keys, shim.options.max_concurrent_requests, reflection=reflection)
    add_servicer(server.grpc, shim.generations, shim.in_progress, health, shim.options.max_logprob_entries)
    port = await server.start(HOST, 0)
    try:
        async with grpc.aio.insecure_channel(at(port)) as channel:
            yield channel
    finally:
        await server.stop(0)


def generate(channel: grpc.aio.Channel, **fields: Any) -> "asyncio.Task[list[vllm.GenerateResponse]]":
    """Starts a Generate call. Returns its responses, or raises AioRpcError."""
    fields = {"text": "Hi"} | fields if "tokenized" not in fields else fields
    return asyncio.ensure_future(_read(VllmEngineStub(channel).Generate(vllm.GenerateRequest(**fields))))


async def _read(call: Any) -> list[vllm.GenerateResponse]:
    return await asyncio.wait_for(_all(call), SECONDS)


async def _all(call: Any) -> list[vllm.GenerateResponse]:
    return [response async for response in call]


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """Returns the error that a call ends with."""
    try:
        await asyncio.wait_for(call, SECONDS)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended without an error")
