"""Answers of a model that knows nothing: at each place one of the allowed tokens."""

import random

import numpy as np

from services.grammar.matcher import Matcher, mask_words
from tests.grammar.vocabularies import END, VOCAB_SIZE, demo_tokens


def random_answer(grammar: str, seed: int, max_tokens: int = 200) -> str | None:
    """Returns the text of an answer that follows the grammar and has ended; None if it is longer.

    Ends where it may, and prefers what closes: else most answers would never end. Raises GrammarError.
    """
    chance = random.Random(seed)
    matcher = Matcher(demo_tokens(), grammar)
    mask = np.zeros(mask_words(VOCAB_SIZE), dtype=np.int32)
    closing = {token for text in ('"', "}", "]", '"}', "1", '",') for token in demo_tokens().tokenize_str(text)}
    tokens: list[int] = []
    while not matcher.is_complete:
        if len(tokens) == max_tokens:
            return None
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        assert allowed
        if END in allowed and (len(allowed) == 1 or chance.random() < 0.5):
            break
        choices = [token for token in allowed if token != END]
        preferred = [token for token in choices if token in closing]
        token = chance.choice(preferred if preferred and chance.random() < 0.4 else choices)
        matcher.consume(token)
        tokens.append(token)
    return demo_tokens().decode_bytes(tokens).decode(errors="replace")
