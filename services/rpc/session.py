"""The callee's end of one stream: hello, then entries in, messages out, until the caller hangs up.

Also the rule of attempts: a caller's handle stays the same when it submits again, and the higher attempt supersedes
the lower one, which may still be running on a stream whose end nobody has noticed yet. And the floor: while one caller
holds it, requests of no other caller start.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import HelloMismatch, check_hello
from services.rpc.mailbox import Mailbox

GOODBYE_SECONDS = 0.5  # a caller that does not listen is not waited for
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


class Callee:
    """What all streams of one process share."""

    def __init__(self) -> None:
        self._talks: set[asyncio.Task[Any]] = set()
        self._ending = False
        self._floor = asyncio.Lock()
        self._holder: tuple[str, int] | None = None  # of the floor: instance and epoch
        self._floor_free = asyncio.Event()

    async def converse(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        hello: pb.Hello,
        caller_roles: tuple[str, ...],
        mailbox: Mailbox[Any],
        opened: Callable[[pb.Hello], Callable[[Any], None]],
        message: Callable[..., Any],
    ) -> None:
        """Runs one stream, until either end hangs up: `opened(caller's hello)` returns what takes each entry."""
        first = await context.read()
        if first is grpc.aio.EOF or self._ending:
            return
        try:
            check_hello(hello, first.hello, caller_roles)
        except HelloMismatch as mismatch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
        receive = opened(first.hello)
        await context.write(message(hello=hello))
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        writer = asyncio.create_task(mailbox.pump(context.write))
        try:
            down = first
            while down is not grpc.aio.EOF:
                for entry in down.entries:
                    if entry.HasField("submit"):
                        await self._may_start(first.hello)
                    receive(entry)
                down = await context.read()
        except asyncio.CancelledError:
            if not self._ending:
                raise
        finally:
            self._talks.discard(talk)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def say_goodbye(self) -> None:
        """Ends all streams in order, so that no caller takes this for a death."""
        self._ending = True
        for talk in self._talks:
            talk.cancel()
        if self._talks:
            await asyncio.wait(self._talks, timeout=GOODBYE_SECONDS)

    async def hold_floor(
        self,
        caller: pb.Hello,
        context: grpc.aio.ServicerContext[Any, Any],
        quiet: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """Grants the floor in order of asking, once it is `quiet`, until the caller hangs up."""
        with contextlib.suppress(asyncio.CancelledError):  # it has; grpc would print a traceback
            async with self._floor:
                self._holder = (caller.instance, caller.epoch)
                self._floor_free.clear()
                try:
                    if quiet is not None:
                        await quiet()
                    await context.write(pb.FloorGranted())
                    await asyncio.Event().wait()
                finally:
                    self._holder = None
                    self._floor_free.set()

    async def _may_start(self, caller: pb.Hello) -> None:
        while self._holder is not None and self._holder != (caller.instance, caller.epoch):
            await self._floor_free.wait()
