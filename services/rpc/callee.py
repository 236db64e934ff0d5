"""The callee's end of a stream: a hello, then entries in and messages out, until either end closes it; and of a
program's call, which is a stream with one entry.

Also the attempts: a caller that resumes a choice keeps its handle, and the higher attempt supersedes the lower one,
which may still run if this process has not noticed the end of its stream.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc

from services.rpc.errors import MALFORMED, TandemError, invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.heartbeat import Heartbeat, Silent
from services.rpc.hello import HelloMismatch, check_hello
from services.rpc.mailbox import Mailbox
from services.rpc.pace import Pace
from services.rpc.response_mailbox import ResponseMailbox
from services.rpc.start_lock import CallerKey, StartLock
from services.rpc.status import abort
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
CLOSE_SECONDS = 0.5  # timeout for the orderly end of all streams
STOPPING = "the process is stopping"
HELLO_SECONDS = 10.0  # timeout for a stream's first message


class Attempts:
    """The running attempt of each caller's handle, with a function that aborts it."""

    def __init__(self) -> None:
        self._live: dict[CallerKey, tuple[int, Callable[[], None]]] = {}
        self._released = asyncio.Event()  # its only reader clears it

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
            self._released.set()

    async def all_released(self) -> None:
        """Returns once no attempt runs."""
        while self._live:
            self._released.clear()
            await self._released.wait()


class Callee:
    """The callee's side of all streams of this process: their attempts, their start lock and their orderly end.

    `worked` is called for each submit, before it is handled.
    """

    def __init__(self) -> None:
        self.worked: Callable[[], None] = lambda: None
        self.attempts = Attempts()
        self._num_short = 0
        self._no_short = asyncio.Event()
        self._no_short.set()
        self.is_draining = False  # callers prefer other processes for new requests
        self._streams: set[asyncio.Task[Any]] = set()  # and calls
        self._mailboxes: dict[asyncio.Task[Any], Mailbox[Any]] = {}  # of the streams among them that exchange messages
        self._renewed: set[asyncio.Task[Any]] = set()  # streams that end in order, so that their callers connect again
        self._call_numbers = itertools.count(1)
        self._pace = Pace()  # of all calls
        self._closing = False
        self.start_lock = StartLock()
        self._broken = RateLimitedLog(log, logging.WARNING)

    async def serve_stream(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        hello_now: Callable[[], pb.Hello],
        caller_roles: tuple[str, ...],
        mailbox: Mailbox[Any],
        make_receiver: Callable[[pb.Hello], Callable[[Any], None]],
        message: Callable[..., Any],
    ) -> None:
        """Serves one stream until either end closes it. `hello_now` returns this process's hello, from which `message`
        builds the first message; the mailbox has the others. `make_receiver(caller's hello)` returns the function that
        handles each entry. Ends the stream in order if the hello changes while it is sent, as renew_streams does later.
        Aborts it if the hellos do not match (FAILED_PRECONDITION), a message is malformed (INVALID_ARGUMENT), no hello
        comes within HELLO_SECONDS, or the caller falls silent (DEADLINE_EXCEEDED)."""
        async with self._malformed_aborts(context):
            first = await _first_message(context)
            if first is grpc.aio.EOF or self._closing:
                return
            hello = hello_now()
            try:
                check_hello(hello, first.hello, caller_roles)
            except HelloMismatch as mismatch:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
            receive = make_receiver(first.hello)
            await context.write(message(hello=hello))
            if hello_now() == hello:
                await self._exchange(context, first, receive, mailbox)

    @contextlib.asynccontextmanager
    async def _malformed_aborts(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        """Aborts the stream with INVALID_ARGUMENT if its body raises one of MALFORMED, DEADLINE_EXCEEDED for Silent."""
        try:
            yield
        except Silent as silent:
            self._broken.log("closed a stream whose caller hangs: %s", silent)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(silent))
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
        submit waits while another caller holds the start lock, and all later entries of the stream wait behind it.

        Raises Silent if the caller sends nothing for too long.
        """
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        self._mailboxes[task] = mailbox
        writer = asyncio.create_task(mailbox.pump(context.write))
        try:
            async with Heartbeat(mailbox.beat) as heartbeat:
                down = first
                while down is not grpc.aio.EOF:
                    for entry in down.entries:
                        if entry.HasField("submit"):
                            await self.start_lock.may_start(first.hello)
                            self.worked()
                        receive(entry)
                    down = await heartbeat.listen(context.read())
        except asyncio.CancelledError:
            if not self._closing and task not in self._renewed:
                raise
        finally:
            self._streams.discard(task)
            self._renewed.discard(task)
            del self._mailboxes[task]
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def serve_call(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        mailbox: ResponseMailbox[Any],
        make_receiver: Callable[[pb.Hello], Callable[[Any], None]],
        make_entry: Callable[[], Any],
        field_of: Callable[[str], str],
    ) -> None:
        """Serves a program's call as a stream with one entry, a submit, that no hello precedes. Returns after the last
        response. Aborts the call with the status of a TandemError, INVALID_ARGUMENT if `make_entry` raises one of
        MALFORMED, UNAVAILABLE if this process stops. `field_of` returns the program's name of the field at fault."""
        task = asyncio.current_task()
        assert task is not None
        caller = pb.Hello(role="program", instance=f"call-{next(self._call_numbers)}")
        self._streams.add(task)
        try:
            if self._closing:
                await context.abort(grpc.StatusCode.UNAVAILABLE, STOPPING)
            entry = make_entry()
            await self.start_lock.may_start(caller)
            self.worked()
            make_receiver(caller)(entry)
            await self._write_responses(context, mailbox)
        except TandemError as error:
            await abort(context, error, field=field_of(error.param))
        except MALFORMED as error:
            await abort(context, invalid(f"the request cannot be read: {error}"))
        except asyncio.CancelledError:
            if not self._closing:
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, STOPPING)
        finally:
            self._streams.discard(task)

    async def _write_responses(
        self, context: grpc.aio.ServicerContext[Any, Any], mailbox: ResponseMailbox[Any]
    ) -> None:
        """Writes the responses of one call, in the pace of all calls."""
        while True:
            await context.write(await mailbox.next())
            if mailbox.is_done:
                return
            await self._pace.pause()

    @contextlib.contextmanager
    def short_call(self) -> Iterator[None]:
        """A drain waits for the block: the answer to a call that is no generation."""
        self._num_short += 1
        self._no_short.clear()
        try:
            yield
        finally:
            self._num_short -= 1
            if not self._num_short:
                self._no_short.set()

    async def drain(self) -> None:
        """Tells the callers to prefer other processes for new requests, and returns once nothing runs."""
        self.is_draining = True
        self.tell_readiness()
        await self.attempts.all_released()
        await self._no_short.wait()

    def tell_readiness(self) -> None:
        """Sends a message on all streams: their mailboxes put the readiness of this process into each."""
        for mailbox in self._mailboxes.values():
            mailbox.wake()

    def renew_streams(self) -> None:
        """Ends all streams with status OK, because this process's hello has changed: the callers connect again, and
        resume their requests."""
        for task in self._mailboxes.keys() - self._renewed:
            self._renewed.add(task)
            task.cancel()

    async def close_streams(self) -> None:
        """Ends streams with status OK and programs' calls with UNAVAILABLE, waiting at most CLOSE_SECONDS; new streams
        end at once.

        A role takes any other status of a stream for the death of this process.
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
