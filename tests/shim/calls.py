"""Calls of both endpoints that generate text, in one process."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.shim.harness import Shim

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}
both = pytest.mark.parametrize("path", [CHAT, TEXT])


def post(http: httpx.AsyncClient, path: str, **body: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(http.post(path, json=BODIES[path] | body))


async def handles_of(shim: Shim) -> list[int]:
    """Of the next submit."""
    return [choice.handle for choice in (await shim.sent()).submit.choices]
