"""A connected shim, and a client of it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.shim.harness import Shim


@pytest.fixture
async def shim() -> Shim:
    return Shim(connected=True)


@pytest.fixture
async def http(shim: Shim) -> AsyncIterator[httpx.AsyncClient]:
    async with shim.http() as client:
        yield client
