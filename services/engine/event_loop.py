"""Calls from another thread into the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any


def call_in_event_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Schedules `function(*args)` on the loop, from any thread. Does nothing once the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)
