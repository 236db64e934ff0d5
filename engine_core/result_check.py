"""Checks a worker's result before the scheduler uses it: one token for each row that the plan samples, or an error."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine_core.batch import ScoredRow
from engine_core.step_plan import (
    ITEM_BYTES,
    BadMessage,
    PromptLogprobs,
    StepResult,
    checked_column,
    pack_i32,
    unpack_i32,
)

MAX_TOKENS_PER_ROW = 1  # no speculative decoding yet
MAX_ERROR_CHARACTERS = 1000
MAX_CAUSE_CHARACTERS = 100


COLUMNS = ("handles", "start_indices", "logprob_widths")


class ResultRows(NamedTuple):
    """What a plan's result must have: the rows that it samples, as int32 columns, without failed ones; and logprobs of
    prompts, a row per request."""

    handles: bytes
    start_indices: bytes
    logprob_widths: bytes
    scored: Sequence[ScoredRow] = ()

    @property
    def num_first_tokens(self) -> int:
        """How many rows sample their answer's first token."""
        return int(np.count_nonzero(unpack_i32(self.start_indices) == 0))


class ResultCheck:
    """Checks results of a worker; its model has `vocab_size` tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, result: StepResult, rows: ResultRows) -> None:
        """Raises BadMessage unless the result has a valid token with its logprobs, or an error, for each of `rows`, and
        the logprobs of prompts that `rows` have."""
        if rows.scored or result.prompt_logprobs:
            self._check_prompt_logprobs(result.prompt_logprobs, rows.scored)
        if result.errors:
            rows = _without_errors(rows, result.errors)
        _check_causes(result)
        for name in COLUMNS:
            if getattr(result, name) != getattr(rows, name):
                raise BadMessage(f"{name}: differ from the rows that the plan samples")
        num_rows = len(rows.handles) // ITEM_BYTES
        if result.completed:
            _check_completed(result.completed, unpack_i32(rows.handles).tolist())
        counts = checked_column("counts", result.counts, MAX_TOKENS_PER_ROW)
        token_ids = checked_column("token_ids", result.token_ids, self._vocab_size - 1)
        if not counts.sum() == len(counts) == len(token_ids) == num_rows:
            raise BadMessage(f"counts, token_ids: {len(token_ids)} ids for {num_rows} rows, but each row has one")
        num_logprobs = int(unpack_i32(rows.logprob_widths).sum())
        ids = checked_column("logprob_token_ids", result.logprob_token_ids, self._vocab_size - 1)
        if not num_logprobs == len(ids) == len(result.logprobs) / ITEM_BYTES:
            raise BadMessage(f"logprobs, logprob_token_ids: not {num_logprobs}, the sum of logprob_widths")

    def _check_prompt_logprobs(self, found: list[PromptLogprobs], scored: Sequence[ScoredRow]) -> None:
        rows = [ScoredRow(one.handle, one.start_index, one.num_tokens, one.width) for one in found]
        if rows != list(scored):
            raise BadMessage("prompt_logprobs: differ from the prompt tokens that the plan computes")
        for one in found:
            ids = checked_column("prompt_logprobs.token_ids", one.token_ids, self._vocab_size - 1)
            ranks = checked_column("prompt_logprobs.ranks", one.ranks, self._vocab_size)
            if not len(ranks) * one.width == len(ids) == len(one.logprobs) / ITEM_BYTES or not ranks.all():
                raise BadMessage("prompt_logprobs: not `width` logprobs for each token, or a rank of 0")


def _check_causes(result: StepResult) -> None:
    """Raises BadMessage unless the result has one short cause for each error, or none at all."""
    if len(result.error_causes) not in (0, len(result.errors)):
        raise BadMessage(f"error_causes: {len(result.error_causes)} for {len(result.errors)} errors")
    if max(map(len, result.error_causes), default=0) > MAX_CAUSE_CHARACTERS:
        raise BadMessage(f"error_causes: one has more than {MAX_CAUSE_CHARACTERS} characters")


def _check_completed(completed: list[int], handles: list[int]) -> None:
    """Raises BadMessage unless `completed` are some of `handles`, each once."""
    if len(set(completed)) < len(completed) or not set(completed).issubset(handles):
        raise BadMessage("completed: not handles of rows with a token, each once")


def _without_errors(rows: ResultRows, errors: list[tuple[int, str]]) -> ResultRows:
    """Returns the rows of the requests without an error.

    Raises BadMessage unless each error belongs to one row and has a message of at most MAX_ERROR_CHARACTERS.
    """
    failed = {handle for handle, _ in errors}
    good = np.array([handle not in failed for handle in unpack_i32(rows.handles).tolist()], dtype=np.bool_)
    if not len(good) - good.sum() == len(failed) == len(errors):
        raise BadMessage("errors: their handles are not those of rows that the plan samples, each once")
    if max(len(message) for _, message in errors) > MAX_ERROR_CHARACTERS:
        raise BadMessage(f"errors: a message has more than {MAX_ERROR_CHARACTERS} characters")
    handles, start_indices, widths = (pack_i32(unpack_i32(getattr(rows, name))[good]) for name in COLUMNS)
    return ResultRows(handles, start_indices, widths, rows.scored)
