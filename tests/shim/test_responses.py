"""responses: every error's status and shape, and work that ends with the client's connection."""

import asyncio
import json

import pytest
from starlette.types import Message

from services.rpc.errors import STATUS, TandemError
from services.shim.responses import ClientGone, error_response, until_disconnected


@pytest.mark.parametrize("code", STATUS)
def test_the_table_of_errors(code: str) -> None:
    response = error_response(TandemError(code, "why", "what"))
    error = json.loads(bytes(response.body))["error"]
    assert response.status_code == STATUS[code].http
    assert (error["message"], error["type"], error["param"]) == ("why", STATUS[code].openai_type, "what")


async def test_work_ends_when_the_client_hangs_up() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    async def receive() -> Message:
        await started.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await until_disconnected(receive, work())
    assert stopped.is_set()


async def test_work_that_is_done_wins_over_a_hang_up() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> int:
        return 5

    assert await until_disconnected(receive, work()) == 5


async def test_the_error_of_the_work_comes_through() -> None:
    async def receive() -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def work() -> int:
        raise TandemError("NOT_FOUND", "no")

    with pytest.raises(TandemError, match="no"):
        await until_disconnected(receive, work())
