"""What the tokenizer sent for the choices of one HTTP request and its client has not read yet.

A slow client delays no other request: the messages for one choice merge until the client's response takes them.
"""

import asyncio
from dataclasses import dataclass, field

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2


@dataclass(slots=True)
class Update:
    """What is new of one choice: text with the token ids that released it, then the terminal message."""

    index: int
    content: str = ""
    token_ids: bytearray = field(default_factory=bytearray)
    logprobs: list[text_pb2.TokenLogprobs] = field(default_factory=list)
    terminal: text_pb2.TextTerminal | None = None


class Updates:
    """Merged per choice; one reader."""

    def __init__(self) -> None:
        self._pending: dict[int, Update] = {}
        self._reader: asyncio.Future[None] | None = None  # while it waits; lighter than an Event, at each token
        self._accepted = False

    def touch(self, index: int) -> Update:
        """The pending update of a choice, to be added to."""
        update = self._pending.get(index)
        if update is None:
            update = self._pending[index] = Update(index)
            self._wake()
        return update

    def accept(self) -> None:
        """A choice runs, so its prompt is valid."""
        self._accepted = True
        self._wake()

    async def wait(self) -> None:
        """Until something is pending or the request is accepted."""
        while not self._pending and not self._accepted:
            await self._woken()

    async def take(self) -> list[Update]:
        """Waits until there is something, then takes all of it."""
        while not self._pending:
            await self._woken()
        taken, self._pending = list(self._pending.values()), {}
        return taken

    def error(self) -> TandemError | None:
        """The error of a pending choice that failed."""
        for update in self._pending.values():
            if update.terminal is not None and update.terminal.HasField("error"):
                return TandemError.from_proto(update.terminal.error)
        return None

    def _woken(self) -> asyncio.Future[None]:
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
