"""Remembers which grammars compile, so that a client's next request with the same one is not checked again.

Bounded in entries and in bytes; the least recently used is dropped first. It keeps verdicts, no compiled grammars: an
answer's matcher must not share limits with another one's.
"""

import hashlib
import threading
from collections import OrderedDict

from llguidance import LLTokenizer

from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher

MAX_ENTRIES = 4096


class GrammarCache:
    """The verdicts for one vocabulary. May be used from several threads."""

    def __init__(self, tokens: LLTokenizer, max_entries: int = MAX_ENTRIES) -> None:
        self.tokens = tokens
        self._max_entries = max_entries
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # SHA-256 of the grammar -> error; empty: it compiles
        self._lock = threading.Lock()

    def check(self, grammar: str) -> None:
        """Compiles the grammar and computes the mask of its first token, unless its verdict is known. Raises
        GrammarError."""
        key = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            verdict = self._verdicts.get(key)
            if verdict is not None:
                self._verdicts.move_to_end(key)
        if verdict is None:
            verdict = self._verdict(grammar)
            with self._lock:
                self._verdicts[key] = verdict
                if len(self._verdicts) > self._max_entries:
                    self._verdicts.popitem(last=False)
        if verdict:
            raise GrammarError(verdict)

    def _verdict(self, grammar: str) -> str:
        try:
            Matcher(self.tokens, grammar).look_ahead()  # a mask has limits of its own
        except GrammarError as error:
            return str(error)
        return ""
