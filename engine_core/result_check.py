"""Checks a worker's result before the scheduler uses it: one token for each row that the plan samples, or an error."""

from typing import NamedTuple

import numpy as np

from engine_core.step_plan import ITEM_BYTES, BadMessage, StepResult, checked_column, pack_i32, unpack_i32

MAX_TOKENS = 1  # of one row: nothing drafts tokens yet
MAX_ERROR_CHARACTERS = 1000


class SampledRows(NamedTuple):
    """The rows that a plan samples, in its order: these columns of its result, byte for byte."""

    handles: bytes
    start_indices: bytes
    logprob_widths: bytes


class ResultCheck:
    """For the worker of one model."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, result: StepResult, rows: SampledRows) -> None:
        """`rows` are those of the result's plan. Raises BadMessage."""
        if result.errors:
            rows = _without_errors(rows, result.errors)
        for name, wanted in zip(SampledRows._fields, rows, strict=True):
            if getattr(result, name) != wanted:
                raise BadMessage(f"{name}: not those of the rows that the plan samples, in its order")
        num_rows = len(rows.handles) // ITEM_BYTES
        counts = checked_column("counts", result.counts, MAX_TOKENS)
        token_ids = checked_column("token_ids", result.token_ids, self._vocab_size - 1)
        if not counts.sum() == len(counts) == len(token_ids) == num_rows:
            raise BadMessage(f"counts, token_ids: {len(token_ids)} ids, where {num_rows} rows have one each")
        num_logprobs = int(unpack_i32(rows.logprob_widths).sum())
        ids = checked_column("logprob_token_ids", result.logprob_token_ids, self._vocab_size - 1)
        if not num_logprobs == len(ids) == len(result.logprobs) / ITEM_BYTES:
            raise BadMessage("logprobs, logprob_token_ids: not as many as logprob_widths say")


def _without_errors(rows: SampledRows, errors: list[tuple[int, str]]) -> SampledRows:
    """The rows of the requests that report no error. Raises BadMessage unless each error has a row of its own."""
    failed = {handle for handle, _ in errors}
    good = np.array([handle not in failed for handle in unpack_i32(rows.handles).tolist()], dtype=np.bool_)
    if not len(good) - good.sum() == len(failed) == len(errors):
        raise BadMessage("errors: not those of rows that the plan samples")
    if max(len(message) for _, message in errors) > MAX_ERROR_CHARACTERS:
        raise BadMessage(f"errors: one has more than {MAX_ERROR_CHARACTERS} characters")
    return SampledRows(*(pack_i32(unpack_i32(column)[good]) for column in rows))
