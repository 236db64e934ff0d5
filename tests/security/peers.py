"""Helpers for tests of the TCP edges: two secrets, free ports, an engine's gRPC server with one RPC."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import zmq

from services.rpc.generated import engine_pb2, engine_pb2_grpc
from services.rpc.transport import RpcServer
from services.security.secret import ClusterSecret
from tests.addresses import HOST, at, free_port

OURS = ClusterSecret(b"0123456789abcdef0123456789abcdef")
THEIRS = ClusterSecret(b"0123456789abcdef0123456789abcdeX")


def free_address() -> str:
    return at(free_port())


class Stats(engine_pb2_grpc.EngineServiceServicer):
    async def GetStats(self, request: Any, context: Any) -> engine_pb2.EngineStats:
        return engine_pb2.EngineStats(num_steps=7)


@asynccontextmanager
async def stats_server(secret: ClusterSecret | None = OURS) -> AsyncIterator[str]:
    """Runs a gRPC server with GetStats and yields its address. `secret` None: without TLS."""
    address = free_address()
    server = RpcServer(address, secret)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(Stats(), server.grpc)
    await server.start()
    try:
        yield address
    finally:
        await server.stop()


async def num_steps(channel: grpc.aio.Channel, seconds: float = 10.0) -> int:
    """Calls GetStats and returns its num_steps. Raises grpc.aio.AioRpcError."""
    stats = await engine_pb2_grpc.EngineServiceStub(channel).GetStats(engine_pb2.GetStatsRequest(), timeout=seconds)
    return int(stats.num_steps)


@contextlib.contextmanager
def zmq_socket(kind: int) -> "Iterator[zmq.Socket[bytes]]":
    opened: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    opened.setsockopt(zmq.LINGER, 0)
    opened.setsockopt(zmq.IPV6, ":" in HOST)
    try:
        yield opened
    finally:
        opened.close()
