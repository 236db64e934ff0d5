"""Turns bad words into the token sequences that an answer must not contain, with vLLM's rules."""

from collections.abc import Sequence

from services.rpc.errors import invalid
from services.tokenizer.vocabulary import Vocabulary


def bad_words_token_ids(words: Sequence[str], vocabulary: Vocabulary, limit: int) -> list[list[int]]:
    """Returns the sequences: each word as the beginning of a text, and as a word after a space.

    The form after a space counts only if it has as many tokens and another first one; else it would forbid the space.
    White space before a word makes no difference, as in vLLM, and no sequence is there twice. `limit`: the most words;
    0: unknown. Raises TandemError (INVALID_ARGUMENT) for a word without tokens, and for more words.
    """
    if limit and len(words) > limit:
        raise invalid(f"bad_words are {len(words)} words: the limit is {limit}", "bad_words")
    sequences: dict[tuple[int, ...], None] = {}  # in the order of the words
    for index, word in enumerate(words):
        stripped = word.lstrip()
        alone = vocabulary.encode(stripped, add_special_tokens=False)
        if not alone:
            raise invalid(
                f"bad_words[{index}] has no tokens: it is empty, or white space only, which does not count",
                f"bad_words.{index}",
            )
        sequences[tuple(alone)] = None
        within = vocabulary.encode(f" {stripped}", add_special_tokens=False)
        if len(within) == len(alone) and within[0] != alone[0]:
            sequences[tuple(within)] = None
    return list(map(list, sequences))
