"""The mailbox between the tokenizers and the response to one HTTP request: the updates that every API renders.

What arrives for one choice merges until the response is ready for more. So a slow client delays no other request.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.rpc.columns import ITEM_BYTES
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.pieces import Piece
from services.shim.in_progress import Hold, no_hold

LOGPROB_BYTES = 100  # of memory per token and logprob of a pending update
UNCOUNTED_TOKENS = 8  # of an update: a reader that keeps up takes it with fewer


@dataclass(slots=True)
class Update:
    """One choice's pieces, token ids and logprobs since the last `take`. `terminal` is set in the choice's last update.

    `index` is the choice's, among all choices of the HTTP request; `token_ids` is a column of little-endian u32. Pieces
    are in the order in which the tokens released them; neighbours of one kind are merged. `held`: bytes that count as
    held for its logprobs, until the reader has made its answer of them. `prompt_logprobs` come before the tokens.
    """

    index: int
    pieces: list[Piece] = field(default_factory=list)
    token_ids: bytearray = field(default_factory=bytearray)
    logprobs: list[text_pb2.TokenLogprobs] = field(default_factory=list)
    terminal: text_pb2.TextTerminal | None = None
    held: int = 0
    prompt_logprobs: list[text_pb2.TextPromptLogprobs] = field(default_factory=list)


class UpdateMailbox:
    """Holds at most one pending update per choice. The writers and the only reader are on one event loop.

    `hold` counts the memory of logprobs: a slow reader's updates merge, and each token has up to some kilobytes.
    `on_full` gets its error, if it raises one.
    """

    def __init__(self, hold: Hold = no_hold, on_full: Callable[[TandemError], None] | None = None) -> None:
        self._hold = hold
        self._on_full = on_full
        self._pending: dict[int, Update] = {}
        self._reader: asyncio.Future[None] | None = None  # set while it waits; cheaper per token than an Event
        self._accepted = False

    def pending(self, index: int) -> Update:
        """Returns the pending update of a choice, for the caller to add to.

        If the choice has none, creates it and wakes the reader.
        """
        update = self._pending.get(index)
        if update is None:
            update = self._pending[index] = Update(index)
            self._wake()
        return update

    def add_logprobs(self, update: Update, logprobs: Sequence[text_pb2.TokenLogprobs]) -> None:
        """Adds the logprobs of new tokens, at least one, to a pending update. Calls `on_full` if all requests then hold
        too much. An update with few tokens does not count."""
        update.logprobs.extend(logprobs)
        if len(update.logprobs) > UNCOUNTED_TOKENS:
            counted = len(logprobs) if update.held else len(update.logprobs)
            self._count(update, counted * (1 + len(logprobs[0].top)) * LOGPROB_BYTES)

    def add_prompt_logprobs(self, index: int, scored: text_pb2.TextPromptLogprobs) -> None:
        """Adds logprobs of the prompt to a choice's pending update. Calls `on_full` as `add_logprobs`."""
        update = self.pending(index)
        update.prompt_logprobs.append(scored)
        self._count(update, len(scored.logprobs.token_ids) // ITEM_BYTES * LOGPROB_BYTES)

    def _count(self, update: Update, size: int) -> None:
        update.held += size
        try:
            self._hold(size)
        except TandemError as error:
            if self._on_full is None:
                raise
            self._on_full(error)

    def close(self) -> None:
        """Lets go of `on_full`: the response is over."""
        self._on_full = None

    def clear(self) -> None:
        """Drops the pending updates."""
        self._pending.clear()

    def accept(self) -> None:
        """Records that the engine has accepted a choice, so the prompt is valid. Wakes the reader."""
        self._accepted = True
        self._wake()

    async def wait(self) -> None:
        """Waits until an update is pending or a choice has been accepted."""
        while not self._pending and not self._accepted:
            await self._woken()

    async def take(self) -> list[Update]:
        """Waits for a pending update, then removes and returns all of them."""
        while not self._pending:
            await self._woken()
        taken, self._pending = list(self._pending.values()), {}
        return taken

    def check(self) -> None:
        """Raises the error of the first pending update that has one, a TandemError."""
        for update in self._pending.values():
            if update.terminal is not None and update.terminal.HasField("error"):
                raise TandemError.from_proto(update.terminal.error)  # in no variable of a frame that its traceback has

    def _woken(self) -> asyncio.Future[None]:
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
