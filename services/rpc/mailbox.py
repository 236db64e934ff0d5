"""The send queue of one direction of a stream.

`put` never blocks. One writer takes all pending entries as one message, so the number of messages does not grow with
the number of requests, and a slow reader gets fewer, larger ones. Entries of one request merge, so the requests
themselves bound the queue. A message stays below the size that the other end accepts.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

MessageT = TypeVar("MessageT")


class Entry(Protocol):
    """A message of protobuf, or what stands for one."""

    def ByteSize(self) -> int: ...


class Service(Protocol):
    """What a callee tells of itself in every message."""

    def is_ready(self) -> bool:
        """Returns whether a token could be made now."""

    def is_served(self) -> bool:
        """Returns whether new requests are accepted: a token could be made now or, after a restart, soon."""


EntryT = TypeVar("EntryT", bound=Entry)
MAX_MERGED_BYTES = 8 * 1024 * 1024  # a message of this size gets no further entry
MERGED_TOKENS = 4096  # at most so many tokens of one choice merge into one entry: some megabytes at 20 logprobs each


def num_fitting(sizes: Iterable[int]) -> int:
    """Returns how many of the entries with these sizes, in bytes, go into one message: at least the first one."""
    count = total = 0
    for size in sizes:
        if total >= MAX_MERGED_BYTES:
            break
        count, total = count + 1, total + size
    return count


class Mailbox(ABC, Generic[MessageT]):
    """Entries to send, on one event loop. Subclasses call `self._wake.set()` after each put."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._has_sent = False  # since the last `beat`

    @abstractmethod
    def take(self) -> MessageT:
        """Removes as many pending entries as fit and returns them as one message. Sets `_wake` if entries are left."""

    def wake(self) -> None:
        """Sends a message even if no entry is pending."""
        self._wake.set()

    def beat(self) -> None:
        """Sends a message, unless one was sent since the last call: it tells the other end that this process makes
        progress."""
        if not self._has_sent:
            self.wake()
        self._has_sent = False

    async def next(self) -> MessageT:
        """Waits for pending entries, removes as many as fit and returns them as one message."""
        await self._wake.wait()
        self._wake.clear()
        self._has_sent = True
        return self.take()

    async def pump(self, write: Callable[[MessageT], Awaitable[None]]) -> None:
        """Passes the pending entries to `write`, one message at a time, until cancelled."""
        while True:
            await write(await self.next())


class EntryMailbox(Mailbox[MessageT], Generic[EntryT, MessageT]):
    """The caller's direction: submits and aborts in the order of their puts. `message` makes a message of entries."""

    def __init__(self, message: Callable[[list[EntryT]], MessageT]) -> None:
        super().__init__()
        self._message = message
        self._pending: list[EntryT] = []

    def put(self, entry: EntryT) -> None:
        self._pending.append(entry)
        self._wake.set()

    def take(self) -> MessageT:
        count = num_fitting(entry.ByteSize() for entry in self._pending)
        taken, self._pending = self._pending[:count], self._pending[count:]
        if self._pending:
            self._wake.set()
        return self._message(taken)
