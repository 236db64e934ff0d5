"""The callee's end of one stream: hello, then entries in, messages out, until the caller hangs up.

Also the rule of attempts: a caller's handle stays the same when it submits again, and the higher attempt supersedes
the lower one, which may still be running on a stream whose end nobody has noticed yet.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import HelloMismatch, check_hello
from services.rpc.mailbox import Mailbox

CallerKey = tuple[str, int, int]  # the caller's instance, its epoch, its handle


class Attempts:
    """Which attempt of each caller's handle is alive here, and how to abort it."""

    def __init__(self) -> None:
        self._live: dict[CallerKey, tuple[int, Callable[[], None]]] = {}

    def claim(self, key: CallerKey, attempt: int, abort: Callable[[], None]) -> bool:
        """True when this attempt is the newest: a lower one that still runs is aborted. False: drop the submit."""
        if key in self._live:
            lower, abort_lower = self._live[key]
            if lower >= attempt:
                return False
            abort_lower()
        self._live[key] = (attempt, abort)
        return True

    def release(self, key: CallerKey, attempt: int) -> None:
        """The choice ended; a newer attempt keeps its claim."""
        if key in self._live and self._live[key][0] == attempt:
            del self._live[key]


async def converse(
    context: grpc.aio.ServicerContext[Any, Any],
    hello: pb.Hello,
    caller_roles: tuple[str, ...],
    mailbox: Mailbox[Any],
    opened: Callable[[pb.Hello], Callable[[Any], None]],
    message: Callable[..., Any],
) -> None:
    """Runs one stream: `opened(caller's hello)` returns the function that takes each entry. Ends with the stream."""
    first = await context.read()
    if first is grpc.aio.EOF:
        return
    try:
        check_hello(hello, first.hello, caller_roles)
    except HelloMismatch as mismatch:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
    receive = opened(first.hello)
    await context.write(message(hello=hello))
    writer = asyncio.create_task(mailbox.pump(context.write))
    try:
        down = first
        while down is not grpc.aio.EOF:
            for entry in down.entries:
                receive(entry)
            down = await context.read()
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
