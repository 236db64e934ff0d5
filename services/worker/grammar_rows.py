"""The rows of one step that follow a grammar: their masks before the step samples, their places after it.

A grammar's error is that of its own row. After the end of a grammar, complete or with an error, its row is not masked:
a step that was planned before the engine knew of the end samples any token, which the engine drops.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from engine_core.row_errors import GRAMMAR
from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from services.worker.logits.interface import Longs
from services.worker.sampler import Fault

Masks = npt.NDArray[np.int32]  # [rows, mask_words]
ComputeMasks = Callable[[list[Matcher], Masks], None]
NOTHING_FITS = "no token of the vocabulary may follow"


class PreparedGrammar:
    """A request's matcher, after the first `num_tokens` tokens of its output."""

    def __init__(self, handle: int, matcher: Matcher, num_tokens: int) -> None:
        self.handle = handle
        self.matcher = matcher
        self.num_tokens = num_tokens
        self.has_ended = matcher.is_complete  # or at an error


def grammar_fault(error: GrammarError) -> Fault:
    """Returns why a row has no token, after an error of its grammar."""
    return Fault(f"the grammar: {error}", GRAMMAR)


@dataclass
class GrammarRows:
    rows: Longs  # [M]: indices of the step's sampled rows, ascending
    grammars: list[PreparedGrammar]  # [M]
    faults: dict[int, Fault] = field(default_factory=dict)  # by row
    completed: list[int] = field(default_factory=list)  # handles; known after `advance`

    def fill(self, masks: Masks, compute: ComputeMasks) -> Longs:
        """Writes the masks of the rows whose grammar goes on into the first rows of `masks` [M or more, mask_words].

        Returns these rows, in the order of their masks. A row whose mask is an error or empty has a fault and no mask.
        """
        pairs = zip(self.rows.tolist(), self.grammars, strict=True)
        going_on = [(row, grammar) for row, grammar in pairs if not grammar.has_ended]
        compute([grammar.matcher for _, grammar in going_on], masks)
        kept: list[int] = []  # indices of masks
        for index, (row, grammar) in enumerate(going_on):
            try:
                grammar.matcher.check()
                if not masks[index].any():
                    raise GrammarError(NOTHING_FITS)
                kept.append(index)
            except GrammarError as error:
                self._fail(row, grammar, error)
        if len(kept) < len(going_on):
            masks[: len(kept)] = masks[kept]
        return np.array([going_on[index][0] for index in kept], dtype=np.int64)

    def advance(self, token_ids: npt.NDArray[np.int64], faults: npt.NDArray[np.int8]) -> None:
        """Goes on with the step's sampled tokens [S]. `faults` [S] are not 0 for rows that have none."""
        for row, grammar in zip(self.rows.tolist(), self.grammars, strict=True):
            if grammar.has_ended:
                continue
            if faults[row]:
                grammar.has_ended = True
                continue
            try:
                grammar.matcher.consume(int(token_ids[row]))
            except GrammarError as error:
                self._fail(row, grammar, error)
                continue
            grammar.num_tokens += 1
            if grammar.matcher.is_complete:
                grammar.has_ended = True
                self.completed.append(grammar.handle)

    def _fail(self, row: int, grammar: PreparedGrammar, error: GrammarError) -> None:
        grammar.has_ended = True
        self.faults[row] = grammar_fault(error)


def one_by_one(matchers: list[Matcher], masks: Masks) -> None:
    """Writes the mask of each matcher into the row of its index; that of one with an error is undefined."""
    for matcher, mask in zip(matchers, masks, strict=False):
        with suppress(GrammarError):
            matcher.fill_mask(mask)


def in_threads(executor: LLExecutor, matchers: list[Matcher], masks: Masks) -> None:
    """Does what `one_by_one` does, with the same masks, in the threads of `executor`."""
    raw = [(matcher.raw, index) for index, matcher in enumerate(matchers) if not matcher.take_ahead(masks[index])]
    if raw:
        executor.unsafe_compute_mask_ptr(raw, masks.ctypes.data, masks.strides[0], len(masks))
