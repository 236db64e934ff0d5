"""Resolves a submit's output specification: what only the tokenizer can find out, and what a resume sends along.

Token ids of bad words, the text that the answer begins with, and the grammar of the answer, which is built and checked
here. Long lists, texts and grammars are resolved in threads, so that the event loop goes on.
"""

import asyncio
import functools
import logging

from services.grammar.errors import GrammarError
from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import invalid, unavailable
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.tokenizer.answer_grammar import AnswerGrammars, grammar_field, may_need_grammar
from services.tokenizer.bad_words import bad_words_token_ids
from services.tokenizer.engine_client import EngineClient
from services.tokenizer.grammar_checks import GrammarChecks
from services.tokenizer.known_grammars import KnownGrammars
from services.tokenizer.recent_grammars import AnswerGrammar
from services.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)
INLINE_WORDS = 32
INLINE_CHARACTERS = 1000


class OutputResolver:
    def __init__(
        self,
        vocabulary: Vocabulary,
        engines: EngineClient,
        grammars: AnswerGrammars,
        known: KnownGrammars,
        checks: GrammarChecks,
    ) -> None:
        self._vocabulary = vocabulary
        self._engines = engines
        self._grammars = grammars
        self._known = known
        self._checks = checks

    async def prepare(self) -> None:
        """Reads the vocabulary for the connected engine, so that the first request with a grammar need not wait."""
        peer = self._engines.dispatcher.peer
        if peer is None:
            return
        try:
            await self._checks.aside(lambda: self._known.cache(peer.engine))
        except GrammarError as error:
            log.warning("requests with a grammar are refused: %s", error)

    async def resolve(self, submit: text_pb2.TextSubmit, prompt_token_ids: list[int]) -> text_pb2.ResolvedOutput:
        """Returns what the submit brings as resolved, if it does (a resume), else what its output resolves to.

        Raises TandemError (INVALID_ARGUMENT) for a bad word without tokens or too many of them, and for a grammar that
        cannot be built or does not compile; ValueError for a malformed column.
        """
        if submit.HasField("resolved"):
            for column in submit.resolved.bad_words_token_ids:
                unpack_u32(column)
            return submit.resolved
        resolved = text_pb2.ResolvedOutput(bad_words_token_ids=await self._bad_words(list(submit.output.bad_words)))
        resolved.lead = await self._prompt_text(submit, prompt_token_ids) if submit.output.echo else submit.output.lead
        if may_need_grammar(submit.output):
            grammar = await self._grammar(submit, prompt_token_ids)
            resolved.grammar = grammar.text
            resolved.ignored_keywords.extend(grammar.ignored_keywords)
        return resolved

    async def _prompt_text(self, submit: text_pb2.TextSubmit, prompt_token_ids: list[int]) -> str:
        """Returns the prompt's text: as the caller has written it, unless only ids or a part of it are left."""
        if submit.WhichOneof("input") == "text" and not submit.HasField("truncation"):
            return submit.text.text
        decode = functools.partial(self._vocabulary.decode, prompt_token_ids, submit.output.skip_special_tokens)
        return decode() if len(prompt_token_ids) <= INLINE_CHARACTERS else await asyncio.to_thread(decode)

    async def _bad_words(self, words: list[str]) -> list[bytes]:
        if not words:
            return []
        if len(words) <= INLINE_WORDS and sum(map(len, words)) <= INLINE_CHARACTERS:
            return self._bad_word_columns(words)
        return await asyncio.to_thread(self._bad_word_columns, words)

    def _bad_word_columns(self, words: list[str]) -> list[bytes]:
        peer = self._engines.dispatcher.peer
        limit = peer.engine.limits.max_bad_words if peer is not None else 0
        return list(map(pack_u32, bad_words_token_ids(words, self._vocabulary, limit)))

    async def _grammar(self, submit: text_pb2.TextSubmit, prompt_token_ids: list[int]) -> AnswerGrammar:
        peer = self._engines.dispatcher.peer
        if peer is None:
            raise unavailable("no engine has connected yet, by whose facts the grammar is checked; try again")
        return await self._checks.run(lambda: self._checked(submit, prompt_token_ids, peer.engine))

    def _checked(
        self, submit: text_pb2.TextSubmit, prompt_token_ids: list[int], engine: pb.EngineFacts
    ) -> AnswerGrammar:
        continues = submit.chat.continue_final_message
        grammar = self._grammars.of_request(submit.output, prompt_token_ids, continues=continues)
        try:
            if grammar.text:
                self._known.check(grammar.text, engine)
        except GrammarError as error:
            field = grammar_field(submit.output)
            raise invalid(f"{field}: {error}", field) from error
        return grammar
