"""One answer's place in its grammar: which tokens may follow, and whether it is complete.

Deterministic: the same grammar and tokens give the same masks and errors, also at a limit, because a mask is computed
before each token, also of one that a resume brings along. llguidance's limits depend on the masks computed so far.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from services.grammar.errors import GrammarError, grammar_error
from services.grammar.limits import LIMITS, MAX_GRAMMAR_BYTES

# Else llguidance looks for text that the grammar determines, to fast-forward over it. That takes minutes for what fits
# in a line, as a million equal texts. So such text may be written in any tokens, not only the tokenizer's own.
_OPTIONS = '%llguidance {"no_forcing": true}\n'

Mask = npt.NDArray[np.int32]  # [mask_words]: bit i % 32 of word i // 32 is set if token i may follow


def mask_words(vocab_size: int) -> int:
    """Returns the number of int32 words of a mask."""
    return (vocab_size + 31) // 32


class Matcher:
    def __init__(self, tokens: LLTokenizer, grammar: str) -> None:
        """Compiles the grammar with the GIL released, and stands at its start. Raises GrammarError."""
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"the grammar is larger than {MAX_GRAMMAR_BYTES} bytes")
        self.raw = LLMatcher(tokens, _OPTIONS + grammar, log_level=0, limits=LIMITS)  # for an LLExecutor
        self._scratch: Mask = np.empty(mask_words(tokens.vocab_size), dtype=np.int32)
        self._is_ahead = False  # the next mask is in _scratch
        self.check()

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow the tokens so far, but an end token that is not needed."""
        return self.raw.is_stopped() and not self.raw.is_error()

    def fill_mask(self, mask: Mask) -> None:
        """Writes which tokens may follow, with the GIL released; 10 µs or so. Call it once before each token.

        Raises GrammarError at a limit: without this check the mask would allow the end, as if the answer were whole.
        """
        if not self.take_ahead(mask):
            self.raw.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            self.check()

    def look_ahead(self) -> None:
        """Computes the next mask already; `fill_mask` then copies it. The first one takes longest, up to 0.2 s for a
        hostile grammar. Raises GrammarError as `fill_mask` would."""
        self.fill_mask(self._scratch)
        self._is_ahead = True

    def take_ahead(self, mask: Mask) -> bool:
        """Writes the mask that `look_ahead` computed, once. Returns whether there was one."""
        if not self._is_ahead:
            return False
        mask[:] = self._scratch
        self._is_ahead = False
        return True

    def consume(self, token_id: int) -> None:
        """Goes on to the next place. Raises GrammarError if the token may not follow."""
        if not self.raw.consume_token(token_id):
            self.check()
            raise GrammarError(f"token {token_id} may not follow")

    def replay(self, token_ids: Iterable[int]) -> None:
        """Goes on over tokens that were sampled before. Raises GrammarError as the masks and tokens did then."""
        for token_id in token_ids:
            self.fill_mask(self._scratch)
            self.consume(token_id)

    def check(self) -> None:
        """Raises GrammarError if the grammar is malformed, a limit was reached, or a token did not fit."""
        if self.raw.is_error():
            raise grammar_error(self.raw.get_error())
