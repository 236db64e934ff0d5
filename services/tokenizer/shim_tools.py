"""Encode and Decode: what shims ask the tokenizer for besides generating, in pieces, so that no message is large.

A refusal is a piece with an error. Long texts are encoded and decoded in threads. Knows no streams.
"""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator

from services.rpc.columns import ITEM_BYTES, pack_u32, unpack_u32
from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, TandemError, invalid
from services.rpc.generated import text_pb2
from services.rpc.output_limits import check_output
from services.tokenizer.prompt_encoder import MAX_ENCODED, MAX_ENCODED_CHARACTERS, PromptEncoder
from services.tokenizer.text_tools import INLINE_IDS, MAX_IDS
from services.tokenizer.unreadable import refusing_unreadable
from services.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)
PIECE_IDS = 8192  # with their texts, a piece takes some milliseconds
PIECE_CHARACTERS = 64 * 1024
FAILED = "the tokenizer failed at this request"
TOO_LONG = f"the text is too long: at most {MAX_ENCODED - 1} tokens and {MAX_ENCODED_CHARACTERS} characters are encoded"


class ShimTools:
    def __init__(self, vocabulary: Vocabulary, encoder: PromptEncoder) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._any_length = encoder.for_any_length()

    async def encode(self, request: text_pb2.EncodeRequest) -> AsyncIterator[text_pb2.EncodedPiece]:
        """Yields the token ids of a prompt in pieces, none for an empty prompt; a refusal as PromptEncoder.encode, for
        what that cannot read and for tools that are too large."""
        try:
            token_ids = await self._ids(request)
        except TandemError as error:
            yield text_pb2.EncodedPiece(error=error.to_proto())
            return
        except Exception:
            log.exception("a prompt was not encoded")
            yield text_pb2.EncodedPiece(error=TandemError("INTERNAL", FAILED).to_proto())
            return
        token_of = self._vocabulary.tokenizer.id_to_token
        for start in range(0, len(token_ids), PIECE_IDS):
            part = token_ids[start : start + PIECE_IDS]
            texts = [token_of(token_id) or "" for token_id in part] if request.return_token_strs else ()
            yield text_pb2.EncodedPiece(token_ids=pack_u32(part), token_strs=texts)
            await asyncio.sleep(0)

    async def _ids(self, request: text_pb2.EncodeRequest) -> list[int]:
        with refusing_unreadable():
            check_output(request.submit.output)
            if not request.any_length:
                return await self._encoder.encode(request.submit)
            try:
                return await self._any_length.encode(request.submit)
            except TandemError as error:
                if error.reason != CONTEXT_LENGTH_EXCEEDED:
                    raise
                raise invalid(TOO_LONG, error.param) from error

    async def decode(self, request: text_pb2.DecodeRequest) -> AsyncIterator[text_pb2.DecodedPiece]:
        """Yields the text of token ids in pieces, none for an empty text; a refusal for an id without a token, for more
        than MAX_IDS ids and for a malformed column."""
        try:
            with refusing_unreadable():
                text = await self._text(request.token_ids)
        except TandemError as error:
            yield text_pb2.DecodedPiece(error=error.to_proto())
            return
        for start in range(0, len(text), PIECE_CHARACTERS):
            yield text_pb2.DecodedPiece(text=text[start : start + PIECE_CHARACTERS])

    async def _text(self, column: bytes) -> str:
        count = len(column) // ITEM_BYTES
        if count > MAX_IDS:
            raise invalid(f"token_ids: {count} ids, but at most {MAX_IDS}", "token_ids")
        if count <= INLINE_IDS:
            return self._decoded(column)
        return await self._any_length.in_thread(functools.partial(self._decoded, column))

    def _decoded(self, column: bytes) -> str:
        return self._vocabulary.decode(unpack_u32(column), skip_special_tokens=False)
