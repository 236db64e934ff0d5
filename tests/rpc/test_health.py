"""Each watcher of a server's health gets each change, whatever other watchers do: leave, or do not read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.health import Health
from services.rpc.transport import open_channel

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
PATIENCE = 20.0

Serve = Callable[..., Any]


class Served:
    """A running server with the health service alone."""

    def __init__(self, address: str, recheck_s: float | None) -> None:
        self.address = address
        self.serving = False
        self.health = Health(("", "tandem.Test"), lambda: self.serving, recheck_s=recheck_s)
        self.grpc = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        self.grpc.add_insecure_port(address)

    def set(self, serving: bool) -> None:
        self.serving = serving
        self.health.changed()

    @contextlib.asynccontextmanager
    async def watch(self, service: str = "") -> AsyncIterator[Callable[[], Any]]:
        """Yields a function that waits for the next status."""
        async with open_channel(self.address) as channel:
            call: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))

            async def status() -> Any:
                async with asyncio.timeout(PATIENCE):
                    answer = await call.read()
                return answer if answer is grpc.aio.EOF else answer.status

            yield status

    async def check(self, service: str = "") -> Any:
        async with open_channel(self.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)).status


@pytest.fixture
async def serve(socket_dir: Path) -> AsyncIterator[Serve]:
    servers: list[Served] = []

    async def start(recheck_s: float | None = None) -> Served:
        servers.append(Served(f"unix:{socket_dir}/socket", recheck_s))
        await servers[-1].grpc.start()
        return servers[-1]

    yield start
    for server in servers:
        await server.grpc.stop(grace=None)


async def test_a_check_says_what_it_is_now(serve: Serve) -> None:
    server = await serve()
    assert await server.check() == NOT_SERVING
    server.serving = True
    assert await server.check() == await server.check("tandem.Test") == SERVING
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await server.check("other")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND and "'other'" in str(error.value.details())


async def test_a_watcher_gets_each_change(serve: Serve) -> None:
    server = await serve()
    async with server.watch() as status, server.watch("tandem.Test") as named, server.watch("other") as other:
        for serving in (False, True, False):
            server.set(serving)
            expected = SERVING if serving else NOT_SERVING
            assert await status() == await named() == expected
        assert await other() == UNKNOWN


async def test_a_watcher_that_leaves_takes_no_other_along(serve: Serve) -> None:
    server = await serve()
    async with server.watch() as stays:
        async with server.watch() as leaves:
            assert await stays() == await leaves() == NOT_SERVING
        async with server.watch() as follows:
            assert await follows() == NOT_SERVING
            server.set(True)
            assert await stays() == await follows() == SERVING


async def test_a_watcher_that_does_not_read_delays_none(serve: Serve) -> None:
    server = await serve()
    async with server.watch(), server.watch() as reads:
        for serving in [False, True] * 50:
            server.set(serving)
            assert await reads() == (SERVING if serving else NOT_SERVING)


async def test_a_status_that_changes_untold_is_found_again(serve: Serve) -> None:
    server = await serve(recheck_s=0.01)
    async with server.watch() as status:
        assert await status() == NOT_SERVING
        server.serving = True
        assert await status() == SERVING


async def test_the_end_is_the_last_status(serve: Serve) -> None:
    server = await serve()
    server.serving = True
    async with server.watch() as status:
        assert await status() == SERVING
        server.health.stop()
        assert await status() == NOT_SERVING
        assert await status() is grpc.aio.EOF
    assert await server.check() == NOT_SERVING
