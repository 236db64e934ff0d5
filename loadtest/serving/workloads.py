"""Workloads: prompts, output lengths and arrival times. Pure: the same seed gives the same requests.

Prompts are token ids or, with a tokenizer, text of a given number of tokens. Knows no server and no clock.
"""

import random
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, floor, inf
from typing import Any, Protocol, TypeVar

from tokenizers import Tokenizer

RAGGED_COUNT = 50
RAGGED_OUTPUT_LENS = (10, 150)
# Fixes the output lengths of ragged-50; --seed changes only the prompts.
_RAGGED_SEED = 42
_WORD = re.compile(r"[A-Za-z]{2,12}")
_MAX_CANDIDATES = 4096

Prompt = str | tuple[int, ...]
P = TypeVar("P", str, tuple[int, ...])


@dataclass(frozen=True)
class Request:
    prompt: Prompt
    input_len: int  # tokens of the prompt as sent, before a chat template
    output_len: int  # requested tokens
    fields: Mapping[str, Any] = field(default_factory=dict)  # further ones of the JSON body


class Prompts(Protocol[P]):
    def draw(self, rng: random.Random, length: int, prefix: P | None = None) -> P:
        """Returns a prompt of `length` tokens, which includes `prefix` at its start."""

    def count(self, prompt: P) -> int:
        """Returns the number of tokens of the prompt."""


class IdPrompts:
    """Prompts of random token ids, uniform in [first, last)."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last

    def draw(self, rng: random.Random, length: int, prefix: tuple[int, ...] | None = None) -> tuple[int, ...]:
        begin = prefix or ()
        return begin + tuple(rng.randrange(self._first, self._last) for _ in range(length - len(begin)))

    def count(self, prompt: tuple[int, ...]) -> int:
        return len(prompt)


class TextPrompts:
    """Prompts of words separated by spaces. Their encoding has the requested length, or the nearest possible one.

    The length includes special tokens that the tokenizer adds, as in a completion request. Turns off truncation and
    padding in the given tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A tokenizer.json may set truncation and padding, which change every count.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._words = _one_token_words(tokenizer)
        # The first word has no space before it, so many words that are one token elsewhere are split there.
        costs = [len(encoding.ids) for encoding in tokenizer.encode_batch(self._words)]
        least = min(costs)
        self._first_words = [word for word, cost in zip(self._words, costs, strict=True) if cost == least]

    def draw(self, rng: random.Random, length: int, prefix: str | None = None) -> str:
        words = prefix.split(" ") if prefix else []
        least = len(words) + 1
        if not words:
            words = [rng.choice(self._first_words)]
        words += rng.choices(self._words, k=max(length - len(words), 0))

        def tokens(count: int) -> int:
            return self.count(" ".join(words[:count]))

        # Most words are one token, so the surplus comes from the first word and the special tokens.
        guess = max(least, len(words) - (tokens(len(words)) - length))
        if tokens(guess) == length:
            return " ".join(words[:guess])
        sizes = range(least, len(words) + 1)
        fitting = max(least, sizes[bisect_right(sizes, length, key=tokens) - 1])
        nearest = min((fitting, min(fitting + 1, len(words))), key=lambda count: abs(tokens(count) - length))
        return " ".join(words[:nearest])

    def count(self, prompt: str) -> int:
        return len(self._tokenizer.encode(prompt).ids)


def _one_token_words(tokenizer: Tokenizer) -> list[str]:
    """Returns words that are one token after a space, so that the length of a text is the number of its words. A
    vocabulary without such words gives other words or letters."""
    # Byte-level and sentencepiece vocabularies write a space as one of these signs.
    bare = {token.lstrip("Ġ▁ ") for token in tokenizer.get_vocab(with_added_tokens=False)}
    words = sorted(word for word in bare if _WORD.fullmatch(word))
    words = words[:: max(1, len(words) // _MAX_CANDIDATES)]
    twice = tokenizer.encode_batch([f"{word} {word}" for word in words])
    thrice = tokenizer.encode_batch([f"{word} {word} {word}" for word in words])
    good = [word for word, a, b in zip(words, twice, thrice, strict=True) if len(b.ids) == len(a.ids) + 1]
    return good or words or list("abcdefghijklmnopqrstuvwxyz")


def random_requests(
    prompts: Prompts[P],
    *,
    count: int,
    input_len: int,
    output_len: int,
    prefix_len: int = 0,
    range_ratio: float = 0.0,
    seed: int = 0,
) -> list[Request]:
    """Returns `count` requests with lengths uniform in [length * (1 - range_ratio), length * (1 + range_ratio)]. Each
    prompt begins with the same `prefix_len` tokens, added to its length."""
    rng = random.Random(seed)

    def around(length: int) -> int:
        return max(1, rng.randint(floor(length * (1 - range_ratio)), ceil(length * (1 + range_ratio))))

    return _draw(prompts, rng, ((around(input_len), around(output_len)) for _ in range(count)), prefix_len)


def ragged_requests(
    prompts: Prompts[P], *, input_len: int, prefix_len: int = 0, seed: int = 0, count: int = RAGGED_COUNT
) -> list[Request]:
    """Returns `count` requests with outputs of 10 to 150 tokens. `seed` changes the prompts, but not the lengths."""
    lengths = random.Random(_RAGGED_SEED)
    shapes = ((input_len, lengths.randint(*RAGGED_OUTPUT_LENS)) for _ in range(count))
    return _draw(prompts, random.Random(seed), shapes, prefix_len)


def _draw(prompts: Prompts[P], rng: random.Random, shapes: Iterable[tuple[int, int]], prefix_len: int) -> list[Request]:
    """Returns a request for each (input, output) length in `shapes`. They are drawn in order, so that a larger count
    leaves the first ones unchanged."""
    prefix = prompts.draw(rng, prefix_len) if prefix_len else None
    requests = []
    for input_len, output_len in shapes:
        prompt = prompts.draw(rng, prefix_len + input_len, prefix)
        requests.append(Request(prompt, prompts.count(prompt), output_len))
    return requests


def arrival_times(count: int, rate: float, seed: int = 0) -> list[float]:
    """Returns seconds after the start, [count]: a Poisson process of `rate` per second; the first request is at 0. With
    an infinite rate all are at 0."""
    if rate == inf:
        return [0.0] * count
    rng = random.Random(f"arrivals {seed}")  # its own generator, so the rate does not change the prompts
    return list(accumulate((rng.expovariate(rate) for _ in range(count - 1)), initial=0.0))
