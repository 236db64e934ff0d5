"""A gRPC server that is cancelled while it starts does not run afterwards."""

import asyncio
from pathlib import Path

import pytest

from services.rpc.transport import RpcServer


@pytest.mark.parametrize("turns", range(6))
async def test_a_start_that_is_cancelled_leaves_no_running_server(socket_dir: Path, turns: int) -> None:
    """The cancellation follows after `turns` of the event loop, at some of which the server runs already."""
    server = RpcServer(f"unix:{socket_dir}/socket")
    starting = asyncio.create_task(server.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    if not starting.cancel():
        await server.stop()
        return
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not server.grpc._server.is_running()
