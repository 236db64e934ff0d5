"""What waits to be written to one direction of a stream.

Putting never blocks; one writer takes all that is pending as one message, so that the number of messages does not
grow with the number of requests, and a slow reader gets fewer, larger ones. What is pending is bounded by the requests
themselves: the entries of one request merge. No message grows beyond what the other end takes.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from google.protobuf.message import Message

MessageT = TypeVar("MessageT")
EntryT = TypeVar("EntryT", bound=Message)
MAX_MERGED_BYTES = 8 * 1024 * 1024  # a message that has reached this takes no further entry
MERGED_TOKENS = 4096  # tokens of one choice that merge into one entry: at 20 logprobs each, some megabytes


def num_fitting(sizes: Iterable[int]) -> int:
    """How many of the entries with these sizes, in bytes, one message takes; at least one, if there is one."""
    count = total = 0
    for size in sizes:
        if total >= MAX_MERGED_BYTES:
            break
        count, total = count + 1, total + size
    return count


class Mailbox(ABC, Generic[MessageT]):
    """Owned by one event loop. Subclasses call `self._wake.set()` when they have put something."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()

    @abstractmethod
    def take(self) -> MessageT:
        """Everything that is pending, as one message; afterwards nothing is."""

    async def pump(self, write: Callable[[MessageT], Awaitable[None]]) -> None:
        """Writes what comes until cancelled, one write in flight."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await write(self.take())


class EntryMailbox(Mailbox[MessageT], Generic[EntryT, MessageT]):
    """Downwards: submits and aborts, in the order in which they were made; large ones in several messages."""

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
