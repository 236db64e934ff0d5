"""Answers of a random model in process: the mask of each token, and a token drawn from what it allows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher, mask_words


@dataclass(frozen=True)
class Answer:
    """`is_complete`: the grammar ended the answer; else it was cut, or `error` says why it could not go on."""

    token_ids: list[int]
    text: bytes  # without end tokens
    is_complete: bool
    error: str = ""


def allowed_ids(mask: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Returns the ids whose bits are set."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def random_answer(tokens: LLTokenizer, grammar: str, rng: np.random.Generator, max_tokens: int) -> Answer:
    """Returns an answer whose tokens are drawn from all allowed ones with equal chances. Raises GrammarError if the
    grammar does not compile."""
    matcher = Matcher(tokens, grammar)
    mask = np.zeros(mask_words(tokens.vocab_size), dtype=np.int32)
    ids: list[int] = []
    error = ""
    try:
        while len(ids) < max_tokens and not matcher.is_complete:
            matcher.fill_mask(mask)
            ids.append(int(rng.choice(allowed_ids(mask))))
            matcher.consume(ids[-1])
    except GrammarError as raised:
        error = str(raised)
    return Answer(ids, decoded(tokens, ids), matcher.is_complete, error)


def decoded(tokens: LLTokenizer, ids: Sequence[int]) -> bytes:
    """Returns the bytes of an answer without its end token."""
    ended = bool(ids) and ids[-1] in tokens.eos_tokens
    return bytes(tokens.decode_bytes(list(ids[:-1] if ended else ids)))


def is_accepted(tokens: LLTokenizer, grammar: str, ids: Sequence[int]) -> bool:
    """Returns whether a fresh matcher accepts the tokens."""
    try:
        Matcher(tokens, grammar).replay(ids)
    except GrammarError:
        return False
    return True
