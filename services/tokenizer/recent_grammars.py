"""Remembers the grammars of recent requests: the next turn of a dialogue asks for the same tools and forms.

Bounded in entries and in bytes of grammars; the least recently used is dropped first.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_ENTRIES = 1024
MAX_BYTES = 32 * 2**20


@dataclass(frozen=True)
class AnswerGrammar:
    """`text`: in llguidance's form of Lark; empty: nothing can be enforced. `ignored_keywords`: of schemas, each with
    its path."""

    text: str
    ignored_keywords: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(len(part.encode()) for part in (self.text, *self.ignored_keywords))


class RecentGrammars:
    """May be used from several threads."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._found: OrderedDict[bytes, AnswerGrammar] = OrderedDict()  # by the SHA-256 of what was asked for
        self._lock = threading.Lock()

    def get(self, asked: bytes, build: Callable[[], AnswerGrammar]) -> AnswerGrammar:
        """Returns the grammar for what was asked for; builds it unless it is remembered. An error is not."""
        key = hashlib.sha256(asked).digest()
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                self._found.move_to_end(key)
                return known
        built = build()
        with self._lock:
            if key not in self._found:
                self._found[key] = built
                self._num_bytes += built.num_bytes
            while len(self._found) > self._max_entries or self._num_bytes > self._max_bytes:
                self._num_bytes -= self._found.popitem(last=False)[1].num_bytes
        return built
