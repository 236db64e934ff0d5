"""Resolves a submit's output specification: what only the tokenizer can find out, and what a resume sends along.

Long lists are resolved in a thread, so that the event loop goes on. Today only bad words have something to resolve.
"""

import asyncio

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import text_pb2
from services.tokenizer.bad_words import bad_words_token_ids
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.vocabulary import Vocabulary

INLINE_WORDS = 32
INLINE_CHARACTERS = 1000


class OutputResolver:
    def __init__(self, vocabulary: Vocabulary, engines: EngineClient) -> None:
        self._vocabulary = vocabulary
        self._engines = engines

    async def resolve(self, submit: text_pb2.TextSubmit) -> text_pb2.ResolvedOutput:
        """Returns what the submit brings as resolved, if it does (a resume), else what its output resolves to.

        Raises TandemError (INVALID_ARGUMENT) for a bad word without tokens or too many of them, ValueError for a
        malformed column.
        """
        if submit.HasField("resolved"):
            for column in submit.resolved.bad_words_token_ids:
                unpack_u32(column)
            return submit.resolved
        words = submit.output.bad_words
        if not words:
            return text_pb2.ResolvedOutput()
        if len(words) <= INLINE_WORDS and sum(map(len, words)) <= INLINE_CHARACTERS:
            return self._resolved(list(words))
        return await asyncio.to_thread(self._resolved, list(words))

    def _resolved(self, words: list[str]) -> text_pb2.ResolvedOutput:
        peer = self._engines.dispatcher.peer
        limit = peer.engine.limits.max_bad_words if peer is not None else 0
        sequences = bad_words_token_ids(words, self._vocabulary, limit)
        return text_pb2.ResolvedOutput(bad_words_token_ids=map(pack_u32, sequences))
