"""Which of a model's added tokens are control tokens: texts that must not act as tokens where a request writes them.

Plain data: a process that has no tokenizer can work with them.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class AddedToken(Protocol):
    """What is read of tokenizers.AddedToken; a rendering worker does not load that library."""

    content: str
    special: bool


class ControlToken(msgspec.Struct, frozen=True):
    """`is_special`: the tokenizer flags it as special, so that answers leave it out by default."""

    text: str
    is_special: bool


def control_tokens(added: Iterable[AddedToken]) -> tuple[ControlToken, ...]:
    """Returns the control tokens among a tokenizer's added tokens."""
    return tuple(ControlToken(token.content, token.special) for token in added if is_control(token))


def is_control(token: AddedToken) -> bool:
    """Returns whether an added token is a control token.

    Not flagged special, and of letters, digits and whitespace only, it is a word of the vocabulary: fine-tunes add
    words, and Gemma's tokenizers have line breaks. ("▁" is a space there.)
    """
    text = token.content
    return bool(text.strip()) and (token.special or not all(map(_is_of_words, text)))


def _is_of_words(character: str) -> bool:
    return character.isalnum() or character.isspace() or character == "▁"
