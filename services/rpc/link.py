"""The caller's end of a long-lived stream: connects, exchanges hellos, reads and writes, reconnects with backoff.

Also unary calls to the same peer. A link knows nothing of what the messages mean. It reports to its owner when the
stream is up and when it is lost; the owner resumes the calls that were on it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import grpc

from services.rpc.call import StreamBroken
from services.rpc.errors import MALFORMED, TandemError, timed_out, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.heartbeat import Heartbeat, Silent
from services.rpc.hello import HelloMismatch, check_hello
from services.rpc.mailbox import Entry, EntryMailbox
from services.rpc.transport import open_channel
from services.security.secret import ClusterSecret
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
UpT = TypeVar("UpT")
MessageT = TypeVar("MessageT", contravariant=True)
EntryT = TypeVar("EntryT", bound=Entry)
AnswerT = TypeVar("AnswerT")
BACKOFF_SECONDS = (0.05, 0.2)  # between two attempts to connect: at first, at most
NOT_CONNECTED = "no process that could answer is connected; try again"
ADMINISTRATION_SECONDS = 30.0  # timeout of a unary call: an engine answers between two steps, which may be long


class LinkOwner(Protocol[MessageT]):
    """Callbacks of a link, in the order of the events, on the event loop. They must not block."""

    def link_up(self, link: Any) -> None: ...
    def link_down(self, link: Any, *, died: bool) -> None:
        """`died`: the stream failed, so the peer may have died. False if the peer ended it in order or broke the
        protocol."""

    def readiness_changed(self, link: Any) -> None: ...
    def receive(self, link: Any, message: MessageT) -> None:
        """Handles one message from the peer. Raises StreamBroken or one of MALFORMED if it breaks the protocol."""


class Link(Generic[EntryT, UpT]):
    """One stream to the process at `target`, which must have `peer_role`. `peer` is its hello; None while it is down.

    `stub` makes the service's stub on a channel. `message` builds the caller's message from `hello=`, its own hello, or
    `entries=`. `secret`: for TLS over TCP; a Unix socket needs none.
    """

    def __init__(
        self,
        target: str,
        stub: Callable[[grpc.aio.Channel], Any],
        message: Callable[..., Any],
        hello: pb.Hello,
        peer_role: str,
        owner: LinkOwner[UpT],
        secret: ClusterSecret | None = None,
    ) -> None:
        self.target = target
        self.peer: pb.Hello | None = None
        self.is_ready = False  # the peer's last message said that a token could be made
        self.is_served = False  # it said that new requests are accepted; so does a new peer
        self.num_received = 0  # messages since this process started, without hellos
        self._new_stub = stub
        self._stub: Any = None  # None until `run` starts
        self._message = message
        self._hello = hello
        self.peer_role = peer_role
        self._owner = owner
        self._secret = secret
        self._mailbox = self._new_mailbox()
        self._handshakes = RateLimitedLog(log, logging.WARNING)
        self._losses = RateLimitedLog(log, logging.INFO)

    def _new_mailbox(self) -> EntryMailbox[EntryT, Any]:
        return EntryMailbox(lambda entries: self._message(entries=entries))

    def put(self, entry: EntryT) -> None:
        """Queues an entry, a submit or an abort, to be sent. The link must be up."""
        self._mailbox.put(entry)

    async def run(self) -> None:
        """Keeps the stream up until cancelled. Raises HelloMismatch, because a retry would fail as well, and Fatal for
        an address that check_address refuses, such as TCP without a secret."""
        delay = BACKOFF_SECONDS[0]
        async with open_channel(self.target, self._secret) as channel:
            self._stub = self._new_stub(channel)
            while True:
                died = False
                try:
                    await self._run_stream()
                except (grpc.aio.AioRpcError, StreamBroken, Silent, asyncio.InvalidStateError) as error:
                    self._raise_if_refused(error)
                    died = not isinstance(error, StreamBroken)
                    self._log_loss(_reason(error))
                if self.peer is not None:
                    self.peer, self.is_ready, self.is_served = None, False, False
                    delay = BACKOFF_SECONDS[0]
                    self._owner.link_down(self, died=died)
                await asyncio.sleep(delay)
                delay = min(2 * delay, BACKOFF_SECONDS[1])

    async def call_unary(self, rpc: Callable[[Any], Awaitable[Any]]) -> Any:
        """Returns the response of `rpc`, which makes a unary call on a stub. Raises TandemError (UNAVAILABLE) when the
        link is down or the call fails."""
        try:
            if self.peer is not None:
                return await rpc(self._stub)
        except grpc.aio.AioRpcError as error:
            log.warning("a call to %s failed: %s", self.target, _reason(error))
        raise unavailable(f"not every {self.peer_role} could be reached; try again")

    async def call_stream(self, rpc: Callable[[Any], AsyncIterable[AnswerT]]) -> AsyncIterator[AnswerT]:
        """Yields the responses of `rpc`, which makes a call with a stream of responses on a stub. Raises TandemError:
        DEADLINE_EXCEEDED after the call's timeout, UNAVAILABLE when the link is down or the call fails otherwise."""
        try:
            if self.peer is not None:
                async for answer in rpc(self._stub):
                    yield answer
                return
        except grpc.aio.AioRpcError as error:
            log.warning("a call to %s failed: %s", self.target, _reason(error))
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise timed_out(f"the {self.peer_role} did not answer in time; try again") from error
        raise unavailable(f"the {self.peer_role} could not be reached; try again")

    @contextlib.asynccontextmanager
    async def hold_start_lock(self, *, apart: bool = False) -> AsyncIterator[Callable[[], bool]]:
        """Holds the peer's start lock: inside, no request of another caller starts there; `apart`: nor one of this
        link. Yields a function that returns False once the peer has ended the grant, as it does when it is idle; else
        True, also if the peer died. Raises StreamBroken when the peer is gone or stopping."""
        call = self._stub.HoldStartLock(_another(self._hello) if apart else self._hello)
        try:
            if await call.read() is grpc.aio.EOF:
                raise StreamBroken("the peer is stopping")
            end = asyncio.create_task(call.read())
            try:
                yield lambda: not (end.done() and end.exception() is None)  # a dead peer did not end the grant
            finally:
                end.cancel()
                await asyncio.gather(end, return_exceptions=True)
        except grpc.aio.AioRpcError as error:
            raise StreamBroken(_reason(error)) from error
        finally:
            call.cancel()

    async def _run_stream(self) -> None:
        """Runs one stream: hellos, then entries out and messages in. Returns when the peer ends it in order.

        Raises HelloMismatch, StreamBroken, Silent if the peer hangs, or AioRpcError when the stream fails.
        """
        call = self._stub.Connect()
        writer: asyncio.Task[None] | None = None
        try:
            await call.write(self._message(hello=self._hello))
            first = await call.read()
            if first is grpc.aio.EOF:
                raise StreamBroken(await call.details() or "closed before the hello")
            check_hello(self._hello, first.hello, (self.peer_role,))
            self.peer, self.is_served, self._mailbox = first.hello, True, self._new_mailbox()
            writer = asyncio.create_task(self._mailbox.pump(call.write))
            self._owner.link_up(self)
            async with Heartbeat(self._mailbox.beat) as heartbeat:
                while (message := await heartbeat.listen(call.read())) is not grpc.aio.EOF:
                    self.num_received += 1
                    self._note_readiness(message)
                    try:
                        self._owner.receive(self, message)
                    except MALFORMED as error:
                        log.debug("malformed message from %s", self.target, exc_info=error)
                        raise StreamBroken(f"malformed message from the {self.peer_role}: {error}") from error
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    def _note_readiness(self, message: Any) -> None:
        if message.ready != self.is_ready or message.served != self.is_served:
            self.is_ready, self.is_served = message.ready, message.served
            self._owner.readiness_changed(self)

    def _log_loss(self, reason: str) -> None:
        """Logs a lost stream or a failed connect; the latter at DEBUG, because the peer may start later, except for a
        failed TLS handshake."""
        if self.peer is not None:
            self._losses.log("stream to %s lost: %s", self.target, reason)
        elif "handshake failed" in reason.lower():
            self._handshakes.log("%s: is its cluster secret another one? %s", self.target, reason)
        else:
            log.debug("no stream to %s: %s", self.target, reason)

    def _raise_if_refused(self, error: Exception) -> None:
        if isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.FAILED_PRECONDITION:
            raise HelloMismatch(f"{self.target} refused the hello: {error.details()}") from error


async def call_all(links: Iterable[Link[Any, Any]], rpc: Callable[[Any], Awaitable[Any]]) -> None:
    """Runs `rpc` (Link.call_unary) on all links at once and waits. Raises TandemError (UNAVAILABLE) if one failed."""
    results = await asyncio.gather(*(link.call_unary(rpc) for link in links), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def call_one(links: Iterable[Link[Any, Any]], rpc: Callable[[Any], Awaitable[AnswerT]]) -> AnswerT:
    """Returns the response of `rpc` (Link.call_unary) from the first link that gives one. Raises TandemError
    (UNAVAILABLE) if none does."""
    for link in links:
        with contextlib.suppress(TandemError):
            answer: AnswerT = await link.call_unary(rpc)
            return answer
    raise unavailable(NOT_CONNECTED)


async def stream_one(
    links: Iterable[Link[Any, Any]], rpc: Callable[[Any], AsyncIterable[AnswerT]]
) -> AsyncIterator[AnswerT]:
    """Yields the responses of `rpc` (Link.call_stream) on the first link that is up. Raises TandemError as call_stream,
    UNAVAILABLE if no link is up."""
    for link in links:
        if link.peer is not None:
            async for answer in link.call_stream(rpc):
                yield answer
            return
    raise unavailable(NOT_CONNECTED)


def _another(caller: pb.Hello) -> pb.Hello:
    """Returns the hello of another caller of the same kind."""
    hello = pb.Hello()
    hello.CopyFrom(caller)
    hello.instance += "-apart"
    return hello


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
