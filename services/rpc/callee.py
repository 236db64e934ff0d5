"""The callee's end of a stream: a hello, then entries in and messages out, until either end closes it.

Also the attempts: a caller that resumes a choice keeps its handle, and the higher attempt supersedes the lower one,
which may still run if this process has not noticed the end of its stream.
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
CLOSE_SECONDS = 0.5  # timeout for the orderly end of all streams
HELLO_SECONDS = 10.0  # timeout for a stream's first message


class Attempts:
    """The running attempt of each caller's handle, with a function that aborts it."""

    def __init__(self) -> None:
        self._live: dict[CallerKey, tuple[int, Callable[[], None]]] = {}

    def claim(self, key: CallerKey, attempt: int, abort: Callable[[], None]) -> bool:
        """Registers an attempt and aborts a running lower one. Returns False if an equal or higher one runs: then the
        submit must be dropped."""
        if key in self._live:
            lower, abort_lower = self._live[key]
            if lower >= attempt:
                return False
            abort_lower()
        self._live[key] = (attempt, abort)
        return True

    def release(self, key: CallerKey, attempt: int) -> None:
        """Removes an attempt that ended; a higher attempt stays registered."""
        if key in self._live and self._live[key][0] == attempt:
            del self._live[key]


class Callee:
    """The callee's side of all streams of this process: their start lock and their orderly end."""

    def __init__(self) -> None:
        self._streams: set[asyncio.Task[Any]] = set()
        self._closing = False
        self.start_lock = StartLock()
        self._broken = RateLimitedLog(log, logging.WARNING)

    async def serve_stream(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        hello: pb.Hello,
        caller_roles: tuple[str, ...],
        mailbox: Mailbox[Any],
        make_receiver: Callable[[pb.Hello], Callable[[Any], None]],
        message: Callable[..., Any],
    ) -> None:
        """Serves one stream until either end closes it. `make_receiver(caller's hello)` returns the function that
        handles each entry. `message` builds the callee's first message from `hello`; the mailbox has the others. Aborts
        the stream if the hellos do not match (FAILED_PRECONDITION), a message is malformed (INVALID_ARGUMENT), or no
        hello comes within HELLO_SECONDS (DEADLINE_EXCEEDED)."""
        async with self._malformed_aborts(context):
            first = await _first_message(context)
            if first is grpc.aio.EOF or self._closing:
                return
            try:
                check_hello(hello, first.hello, caller_roles)
            except HelloMismatch as mismatch:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
            receive = make_receiver(first.hello)
            await context.write(message(hello=hello))
            await self._exchange(context, first, receive, mailbox)

    @contextlib.asynccontextmanager
    async def _malformed_aborts(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        """Aborts the stream with INVALID_ARGUMENT if its body raises one of MALFORMED."""
        try:
            yield
        except MALFORMED as error:
            self._broken.log("closed a stream after a malformed message: %s", error)
            log.debug("malformed message", exc_info=error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed message: {error}")

    async def _exchange(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        first: Any,
        receive: Callable[[Any], None],
        mailbox: Mailbox[Any],
    ) -> None:
        """Passes the entries of `first` and of all later messages to `receive`, and writes the mailbox's messages. A
        submit waits while another caller holds the start lock, and all later entries of the stream wait behind it."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
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
            if not self._closing:
                raise
        finally:
            self._streams.discard(task)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def close_streams(self) -> None:
        """Ends all streams with status OK, waiting at most CLOSE_SECONDS; new streams end at once.

        A caller takes any other status for the death of this process.
        """
        self._closing = True
        for task in self._streams:
            task.cancel()
        if self._streams:
            await asyncio.wait(self._streams, timeout=CLOSE_SECONDS)


async def _first_message(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """Returns the stream's first message, or EOF. After HELLO_SECONDS, aborts the stream with DEADLINE_EXCEEDED."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            return await context.read()
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_SECONDS:g} s")
