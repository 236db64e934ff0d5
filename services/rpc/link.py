"""The caller's end of one long-lived stream: connects, says hello, reads and writes, and connects again. Beside it,
unary calls to the same peer.

It knows nothing of what the messages mean. When the stream ends, for whatever reason, its owner is told and
resumes the calls that were on it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from services.rpc.call import StreamBroken
from services.rpc.errors import MALFORMED, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.hello import HelloMismatch, check_hello
from services.rpc.mailbox import EntryMailbox
from services.rpc.transport import open_channel
from services.security.secret import ClusterSecret
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)
UpT = TypeVar("UpT")
MessageT = TypeVar("MessageT", contravariant=True)
EntryT = TypeVar("EntryT", bound=Message)
RECONNECT_SECONDS = (0.05, 2.0)
ADMINISTRATION_SECONDS = 30.0  # an engine answers between two steps, and a step may take long


class LinkOwner(Protocol[MessageT]):
    """Told of everything in the order in which it happens, on the event loop; must not block."""

    def link_up(self, link: Any) -> None: ...
    def link_down(self, link: Any, *, died: bool) -> None:
        """`died`: the peer may have; it did not say goodbye, nor was it given up."""

    def receive(self, link: Any, message: MessageT) -> None:
        """Raises StreamBroken when the peer broke the contract."""


class Link(Generic[EntryT, UpT]):
    """`stub` makes the service's stub on a channel; `message` builds a downward message from hello or entries."""

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
        self.num_received = 0  # messages since this process started, hellos left out
        self._new_stub = stub
        self._stub: Any = None  # while this runs
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
        """Sends an entry; only while the link is up."""
        self._mailbox.put(entry)

    async def run(self) -> None:
        """Keeps the stream up until cancelled. Raises HelloMismatch, which no retry would mend, and Fatal for
        an address without protection."""
        delay = RECONNECT_SECONDS[0]
        async with open_channel(self.target, self._secret) as channel:
            self._stub = self._new_stub(channel)
            while True:
                died = False
                try:
                    await self._converse()
                except (grpc.aio.AioRpcError, StreamBroken, asyncio.InvalidStateError) as error:
                    self._raise_if_refused(error)
                    died = not isinstance(error, StreamBroken)
                    self._log_loss(_reason(error))
                if self.peer is not None:
                    self.peer = None
                    delay = RECONNECT_SECONDS[0]
                    self._owner.link_down(self, died=died)
                await asyncio.sleep(delay)
                delay = min(2 * delay, RECONNECT_SECONDS[1])

    async def call_unary(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """The answer to a unary call on the peer's stub. Raises TandemError (UNAVAILABLE) where there is none."""
        try:
            if self.peer is not None:
                return await question(self._stub)
        except grpc.aio.AioRpcError as error:
            log.warning("%s did not do what it was asked to: %s", self.target, _reason(error))
        raise unavailable(f"not every {self.peer_role} could be reached; try again")

    @contextlib.asynccontextmanager
    async def hold_start_lock(self) -> AsyncIterator[Callable[[], bool]]:
        """Inside, no request of another caller starts at the peer. Yields a function that says whether that still
        holds: the peer ends an unused grant. Raises StreamBroken when the peer is gone."""
        call = self._stub.HoldStartLock(self._hello)
        try:
            if await call.read() is grpc.aio.EOF:
                raise StreamBroken("the peer ends")
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

    async def _converse(self) -> None:
        call = self._stub.Connect()
        writer: asyncio.Task[None] | None = None
        try:
            await call.write(self._message(hello=self._hello))
            first = await call.read()
            if first is grpc.aio.EOF:
                raise StreamBroken(await call.details() or "closed before the hello")
            check_hello(self._hello, first.hello, (self.peer_role,))
            self.peer, self._mailbox = first.hello, self._new_mailbox()
            writer = asyncio.create_task(self._mailbox.pump(call.write))
            self._owner.link_up(self)
            while (message := await call.read()) is not grpc.aio.EOF:
                self.num_received += 1
                try:
                    self._owner.receive(self, message)
                except MALFORMED as error:
                    log.debug("%s sent a malformed message", self.target, exc_info=error)
                    raise StreamBroken(f"malformed message of the {self.peer_role}: {error}") from error
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    def _log_loss(self, reason: str) -> None:
        """At the start the callee may not be there yet, which is no news; another secret is."""
        if self.peer is not None:
            self._losses.log("stream to %s lost: %s", self.target, reason)
        elif "handshake failed" in reason.lower():
            self._handshakes.log("%s: is its cluster secret another one? %s", self.target, reason)
        else:
            log.debug("no stream to %s: %s", self.target, reason)

    def _raise_if_refused(self, error: Exception) -> None:
        if isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.FAILED_PRECONDITION:
            raise HelloMismatch(f"{self.target} refused the hello: {error.details()}") from error


async def call_all(links: Iterable[Link[Any, Any]], question: Callable[[Any], Awaitable[Any]]) -> None:
    """Asks every peer at once, and waits for all. Raises TandemError (UNAVAILABLE) unless each has answered."""
    answers = await asyncio.gather(*(link.call_unary(question) for link in links), return_exceptions=True)
    for error in answers:
        if isinstance(error, BaseException):
            raise error


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
