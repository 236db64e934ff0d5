"""The demo model's vocabulary, for grammars."""

import functools
from pathlib import Path

from llguidance import LLTokenizer

from services.grammar.tokens import grammar_tokens

DEMO = Path(__file__).parents[2] / "demo" / "checkpoint"
VOCAB_SIZE = 1030  # more than the tokenizer has: logits may be wider
END = 0


@functools.cache
def demo_tokens() -> LLTokenizer:
    return grammar_tokens(DEMO, VOCAB_SIZE, [END])


def ids_of(text: str) -> list[int]:
    return demo_tokens().tokenize_str(text)
