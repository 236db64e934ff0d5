"""The callee's end of one stream: hello, then entries in, messages out, until the caller hangs up.

Also the rule of attempts: a caller's handle stays the same when it submits again, and the higher attempt supersedes
the lower one, which may still be running on a stream whose end this process has not noticed yet.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from services.rpc.errors import MALFORMED
from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import HelloMismatch, check_hello
from services.rpc.mailbox import Mailbox
from services.rpc.start_lock import CallerKey, StartLock
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
GOODBYE_SECONDS = 0.5  # a caller that does not listen is not waited for
HELLO_SECONDS = 10.0  # after which a stream without a hello is closed


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
        self.start_lock = StartLock()
        self._broken = RateLimitedLog(log, logging.WARNING)

    async def serve_stream(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        hello: pb.Hello,
        caller_roles: tuple[str, ...],
        mailbox: Mailbox[Any],
        opened: Callable[[pb.Hello], Callable[[Any], None]],
        message: Callable[..., Any],
    ) -> None:
        """Runs one stream, until either end hangs up: `opened(caller's hello)` returns what takes each entry."""
        async with self._malformed_aborts(context):
            first = await _first_message(context)
            if first is grpc.aio.EOF or self._ending:
                return
            try:
                check_hello(hello, first.hello, caller_roles)
            except HelloMismatch as mismatch:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
            receive = opened(first.hello)
            await context.write(message(hello=hello))
            await self._exchange(context, first, receive, mailbox)

    @contextlib.asynccontextmanager
    async def _malformed_aborts(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        """Aborts the stream on a malformed message."""
        try:
            yield
        except MALFORMED as error:
            self._broken.log("closed a stream after a malformed message: %s", error)
            log.debug("the malformed message", exc_info=error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed message: {error}")

    async def _exchange(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        first: Any,
        receive: Callable[[Any], None],
        mailbox: Mailbox[Any],
    ) -> None:
        """Hands on the entries of `first` and of all messages behind it; writes meanwhile what comes to the mailbox."""
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        writer = asyncio.create_task(mailbox.pump(context.write))
        try:
            down = first
            while down is not grpc.aio.EOF:
                for entry in down.entries:
                    if entry.HasField("submit"):
                        await self.start_lock.may_start(first.hello)
                    receive(entry)
                down = await context.read()
        except asyncio.CancelledError:
            if not self._ending:
                raise
        finally:
            self._talks.discard(talk)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def close_streams(self) -> None:
        """Ends all streams in order, so that no caller takes this for a death."""
        self._ending = True
        for talk in self._talks:
            talk.cancel()
        if self._talks:
            await asyncio.wait(self._talks, timeout=GOODBYE_SECONDS)


async def _first_message(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """Returns the stream's first message, or EOF; aborts the stream when it takes too long."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            return await context.read()
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_SECONDS:g} s")
