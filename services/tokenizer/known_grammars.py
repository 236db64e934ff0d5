"""The vocabulary in which grammars are checked, and the verdicts on them: those of the engine that is connected.

An engine's logits may be wider than tokenizer.json, and its model says which ids end an answer: both are part of what a
grammar allows. All of it is rebuilt when these facts change. It knows no requests.
"""

import threading
from pathlib import Path

from services.grammar.cache import GrammarCache
from services.grammar.errors import GrammarError
from services.grammar.tokens import grammar_tokens
from services.rpc.generated import common_pb2 as pb

Facts = tuple[int, tuple[int, ...]]  # vocab_size, eos_token_ids


class KnownGrammars:
    """May be used from several threads. `model`: the directory with tokenizer.json."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._facts: Facts | None = None
        self._cache: GrammarCache | GrammarError | None = None  # an error: the vocabulary cannot be used

    def check(self, grammar: str, engine: pb.EngineFacts) -> None:
        """Compiles the grammar for this engine, unless its verdict is known. Raises GrammarError.

        Call it in a thread with a deep stack.
        """
        self.cache(engine).check(grammar)

    def cache(self, engine: pb.EngineFacts) -> GrammarCache:
        """Returns the verdicts for this engine; reads the vocabulary when its facts are new, which takes 0.7 s for
        150,000 tokens. Raises GrammarError for a vocabulary that cannot be used."""
        facts = engine.vocab_size, tuple(engine.eos_token_ids)
        with self._lock:
            if facts != self._facts:
                self._cache = self._new_cache(*facts)
                self._facts = facts
            found = self._cache
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))
        assert found is not None
        return found

    def _new_cache(self, vocab_size: int, eos_token_ids: tuple[int, ...]) -> GrammarCache | GrammarError:
        try:
            return GrammarCache(grammar_tokens(self._model, vocab_size, eos_token_ids))
        except GrammarError as error:
            return error
