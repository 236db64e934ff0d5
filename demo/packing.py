"""Packs dialogues into rows of token ids. The loss is over all tokens, those of prompts included, with two exceptions:
the empty thinking block that the chat template writes, and the first token of each earlier answer, which has no
thinking block. With them the model would learn never to think."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from demo.dialogues import Dialogue
from demo.vocabulary import END, END_OF_TEXT, START

IGNORED = -100


@dataclass(frozen=True)
class Encoded:
    """The token ids of a dialogue, their labels (the same ids, not shifted; IGNORED where there is no loss), and the
    index at which the answer begins."""

    ids: list[int]
    labels: list[int]
    answer_start: int


class Encoder:
    """Encodes dialogues. `tokenizer` is that of transformers, with the chat template, so that training sees the same
    tokens as inference."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._opening = self._encode(f"{START}assistant\n")
        self._empty_block = len(self._encode("<think>\n\n</think>\n\n"))
        self.end_of_text: int = tokenizer.convert_tokens_to_ids(END_OF_TEXT)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode(self, dialogue: Dialogue) -> Encoded:
        """Returns the prompt that a server would render, the answer, and the end-of-turn token, as ids with labels."""
        prompt = self._encode(
            self._tokenizer.apply_chat_template(
                dialogue.messages,
                tools=dialogue.tools or None,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=dialogue.thinking,
            )
        )
        ids = prompt + self._encode(f"{dialogue.answer}{END}")
        labels = list(ids)
        width = len(self._opening)
        starts = [at + width for at in range(len(prompt)) if ids[at : at + width] == self._opening]
        for start in starts[:-1]:
            labels[start] = IGNORED
        if not dialogue.thinking:
            labels[starts[-1] : starts[-1] + self._empty_block] = [IGNORED] * self._empty_block
        return Encoded(ids, labels, len(prompt))


@dataclass(frozen=True)
class Batch:
    """One training batch of B rows of L tokens. `ids`, `labels` (shifted: the next token, or IGNORED) and `positions`
    (from 0 in each dialogue): int64 [B, L]. `mask`: bool [B, 1, L, L], true where a token attends to another one; never
    across dialogues."""

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


def pack(encoded: Iterator[Encoded], rows: int, length: int, padding: int) -> Iterator[Batch]:
    """Yields batches of `rows` rows of `length` tokens, filled with the token id `padding`. Each dialogue goes into the
    fullest row with room for all of it. Dialogues longer than a row are dropped. `encoded` must not end."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    waiting: list[Encoded] = []
    while True:
        free = [length] * rows
        ids = torch.full((rows, length), padding)
        labels = torch.full((rows, length), IGNORED)
        positions = torch.zeros((rows, length), dtype=torch.int64)
        owners = torch.arange(length).repeat(rows, 1) + length  # padding attends to itself only
        number = 0
        while True:
            one = waiting.pop() if waiting else next(encoded)
            size = len(one.ids)
            if size > length:
                continue
            fitting = [row for row in range(rows) if free[row] >= size]
            if not fitting:
                waiting.append(one)
                break
            row = min(fitting, key=free.__getitem__)
            start = length - free[row]
            free[row] -= size
            ids[row, start : start + size] = torch.tensor(one.ids)
            labels[row, start : start + size - 1] = torch.tensor(one.labels[1:])
            positions[row, start : start + size] = torch.arange(size)
            owners[row, start : start + size] = -number - 1
            number += 1
        mask = (owners[:, :, None] == owners[:, None, :]) & causal
        yield Batch(ids, labels, positions, mask[:, None])
