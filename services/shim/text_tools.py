"""Asks the tokenizers for what is not generated: the token ids of a prompt, the text of ids, the configuration.

What comes in pieces is kept in pieces, as JSON where it is text, so that no step of the event loop is long. A call that
a tokenizer's death cuts off is made again, by another one if there is one. After SUSPECT_AT losses it runs alone
(services/shim/alone.py), and ends with an error if it is lost again: the tokenizer's next epoch shows whether that has
died. A call waits through an outage as new requests do.
"""

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from services.rpc.call import StreamBroken
from services.rpc.columns import ITEM_BYTES
from services.rpc.errors import TandemError, unavailable
from services.rpc.generated import text_pb2
from services.rpc.link import ADMINISTRATION_SECONDS, NOT_CONNECTED
from services.rpc.suspect_retries import START_LOCK_RETRY_SECONDS, SUSPECT_AT
from services.shim.alone import Alone
from services.shim.apis.json_pieces import encode
from services.shim.bulk import NO_BULK, Bulk, BulkSubmit, encode_request
from services.shim.in_progress import Hold
from services.shim.tokenizer_client import LOSS_SECONDS, TextUplink, TokenizerClient

# At once; others wait in order. A connection has a limit on calls, which others need as well, and a tokenizer takes a
# multiple of a large call's size, while it works on two at a time.
MAX_CALLS = 64
MAX_LARGE_CALLS = 4
LARGE_BYTES = 256 * 1024
SECONDS = 60.0  # timeout of a call: a chat may wait for others, and its template take `--chat-template-timeout`
ResultT = TypeVar("ResultT")
PieceT = TypeVar("PieceT", text_pb2.EncodedPiece, text_pb2.DecodedPiece)


class Lost(Exception):
    """A call on `link` was cut off: its peer, which had this epoch, may have died. `error`: what the call raised."""

    def __init__(self, link: TextUplink, epoch: int, error: TandemError) -> None:
        super().__init__(str(error))
        self.link = link
        self.epoch = epoch
        self.error = error


@dataclass
class Encoded:
    """`token_ids`: a column of little-endian u32. `token_strs`: if asked for, parts of the JSON array of the tokens as
    the vocabulary writes them, without brackets and the commas between the parts."""

    token_ids: bytearray = field(default_factory=bytearray)
    token_strs: list[bytes] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // ITEM_BYTES


class TextTools:
    """One object per process. `hold`, as of InProgress, counts the memory of a result."""

    def __init__(self, client: TokenizerClient) -> None:
        self._client = client
        self._turns = itertools.count()
        self._places = asyncio.Semaphore(MAX_CALLS)
        self._large_places = asyncio.Semaphore(MAX_LARGE_CALLS)
        self._alone = Alone()

    async def encode(
        self, submit: text_pb2.TextSubmit, bulk: Bulk, hold: Hold, *, any_length: bool = False, token_strs: bool = False
    ) -> Encoded:
        """Returns the token ids of a submit's prompt; `bulk` has the large fields that the submit lacks. `any_length`:
        the prompt need not fit into the context.

        Raises TandemError: INVALID_ARGUMENT for what the tokenizer refuses, RESOURCE_EXHAUSTED if all requests hold too
        much, UNAVAILABLE if no tokenizer answers, DEADLINE_EXCEEDED if it takes longer than SECONDS.
        """
        whole = submit if bulk is NO_BULK else BulkSubmit(submit, bulk)
        request = encode_request(whole, any_length=any_length, return_token_strs=token_strs)

        async def collected(link: TextUplink, hold: Hold) -> Encoded:
            found = Encoded()
            async for piece in _pieces(link, lambda stub: stub.Encode(request, timeout=SECONDS)):
                found.token_ids += piece.token_ids
                hold(len(piece.token_ids))
                if piece.token_strs:
                    found.token_strs.append(encode(list(piece.token_strs))[1:-1])
                    hold(len(found.token_strs[-1]))
            return found

        return await self._answered(collected, hold, len(bulk.input) + len(bulk.output))

    async def decode(self, token_ids: bytes, hold: Hold) -> list[bytes]:
        """Returns the text of a column of token ids: parts of a JSON string, without the quotes. Raises as `encode`."""
        request = text_pb2.DecodeRequest(token_ids=token_ids)

        async def collected(link: TextUplink, hold: Hold) -> list[bytes]:
            found: list[bytes] = []
            async for piece in _pieces(link, lambda stub: stub.Decode(request, timeout=SECONDS)):
                found.append(encode(piece.text)[1:-1])
                hold(len(found[-1]))
            return found

        return await self._answered(collected, hold, len(token_ids))

    async def tokenizer_config(self) -> bytes:
        """Returns tokenizer_config.json as a tokenizer shows it. Raises TandemError (UNAVAILABLE) if none answers."""
        request = text_pb2.GetTokenizerConfigRequest()
        config: text_pb2.TokenizerConfig = await self._client.ask_one(
            lambda stub: stub.GetTokenizerConfig(request, timeout=ADMINISTRATION_SECONDS)
        )
        return config.config_json

    async def _answered(
        self, call: Callable[[TextUplink, Hold], Awaitable[ResultT]], hold: Hold, num_bytes: int
    ) -> ResultT:
        """Returns the result of a call of `num_bytes` on a link that is up, a different one each time; again on the
        next one if it is lost, and at last alone. `call` counts what it keeps.

        Raises TandemError: INTERNAL if the tokenizer dies while the call runs alone, UNAVAILABLE if the call is lost
        there without a death, or no tokenizer is there.
        """
        async with self._places if num_bytes < LARGE_BYTES else self._large_places:
            for _ in range(SUSPECT_AT):
                try:
                    async with self._alone.beside_others():
                        return await _attempt(call, await self._next_link(), hold)
                except Lost:
                    await asyncio.sleep(LOSS_SECONDS)  # or the next attempt may meet the same death
            while True:
                try:
                    async with self._alone.alone():
                        return await self._last_attempt(call, hold)
                except StreamBroken:
                    await asyncio.sleep(START_LOCK_RETRY_SECONDS)
                except Lost as lost:
                    raise await self._final_error(lost) from lost

    async def _last_attempt(self, call: Callable[[TextUplink, Hold], Awaitable[ResultT]], hold: Hold) -> ResultT:
        """Returns the result of a call while nothing else starts at its tokenizer. Raises Lost if the call was cut off,
        StreamBroken if the tokenizer was already gone."""
        link = await self._next_link()
        peer = link.peer
        async with link.hold_start_lock(apart=True):
            if link.peer is not peer:
                raise StreamBroken("the tokenizer is another one")
            return await _attempt(call, link, hold)

    async def _final_error(self, lost: Lost) -> TandemError:
        """Returns the error of a call that was lost while it ran alone: INTERNAL if the tokenizer died."""
        await asyncio.sleep(LOSS_SECONDS)
        if await self._client.dispatcher.peer_died(lost.link, lost.epoch):
            return TandemError("INTERNAL", "the tokenizer died while it ran this request alone")
        return lost.error

    async def _next_link(self) -> TextUplink:
        """Returns the links that are up in turn, only the ready ones if there are any. Raises TandemError (UNAVAILABLE)
        if none is up, and none is expected."""
        await self._client.dispatcher.outage.wait()
        links = [link for link in self._client.links if link.peer is not None]
        if not links:
            raise unavailable(NOT_CONNECTED)
        links = [link for link in links if link.is_ready] or links
        return links[next(self._turns) % len(links)]


async def _attempt(call: Callable[[TextUplink, Hold], Awaitable[ResultT]], link: TextUplink, hold: Hold) -> ResultT:
    """Returns the result of a call on a link. What a call that failed has held does not count any more."""
    held = 0

    def counted(size: int) -> None:
        nonlocal held
        held += size
        hold(size)

    try:
        return await call(link, counted)
    except (Lost, TandemError):
        hold(-held)
        raise


async def _pieces(link: TextUplink, rpc: Callable[[Any], AsyncIterable[PieceT]]) -> AsyncIterator[PieceT]:
    """Yields the pieces of a call on a link. Raises Lost if it was cut off, TandemError if the tokenizer answers with
    an error, or not in time."""
    epoch = link.peer.epoch if link.peer is not None else 0
    pieces = link.call_stream(rpc)
    while True:
        try:
            piece = await anext(pieces, None)
        except TandemError as error:
            if error.code != "UNAVAILABLE":
                raise
            raise Lost(link, epoch, error) from error
        if piece is None:
            return
        if piece.HasField("error"):
            raise TandemError.from_proto(piece.error)
        yield piece
