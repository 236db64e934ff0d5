"""The way from the busy loop's thread to the event loop, which may be closed by then."""

import asyncio
from collections.abc import Callable
from typing import Any


def call_in_event_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Calls it there, soon; nothing once the loop is closed: this process ends."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)
