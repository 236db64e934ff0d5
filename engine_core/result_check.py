"""Checks a worker's result before the scheduler uses it: one token for each row that the plan samples, or an error."""

from collections.abc import Callable

import numpy as np

from engine_core.step_plan import ITEM_BYTES, BadMessage, StepResult, checked_column, unpack_i32

MAX_TOKENS = 1  # of one row: nothing drafts tokens yet
MAX_ERROR_CHARACTERS = 1000


class ResultCheck:
    """For the worker of one model."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, result: StepResult, handles: bytes, num_logprobs: Callable[[int], int | None]) -> None:
        """`handles`: those of the rows that sample, in the plan's order. `num_logprobs` says what a request wants.

        Raises BadMessage.
        """
        if result.errors:
            _check_errors(result, handles)
        elif result.handles != handles:
            raise BadMessage("handles: not those of the rows that the plan samples, in its order")
        if not len(result.start_indices) == len(result.counts) == len(result.handles):
            raise BadMessage("start_indices, counts: not as many as handles")
        counts = checked_column("counts", result.counts, MAX_TOKENS)
        token_ids = checked_column("token_ids", result.token_ids, self._vocab_size - 1)
        if not counts.sum() == len(counts) == len(token_ids):
            raise BadMessage(f"token_ids: {len(token_ids)}, where {len(counts)} rows have one each")
        if result.logprobs or result.logprob_token_ids:
            self._check_logprobs(result, num_logprobs)

    def _check_logprobs(self, result: StepResult, num_logprobs: Callable[[int], int | None]) -> None:
        """A request that ended meanwhile may have any width up to the vocabulary's."""
        widths = checked_column("logprob_widths", result.logprob_widths, self._vocab_size + 1)
        ids = checked_column("logprob_token_ids", result.logprob_token_ids, self._vocab_size - 1)
        if len(result.logprob_widths) != len(result.handles):
            raise BadMessage("logprob_widths: not as many as handles")
        for handle, width in zip(unpack_i32(result.handles).tolist(), widths.tolist(), strict=True):
            wanted = num_logprobs(handle)
            if wanted is not None and width != wanted + 1:
                raise BadMessage(f"logprob_widths: {width} for a request that wants {wanted + 1}")
        if not int(widths.sum(dtype=np.int64)) == len(ids) == len(result.logprobs) / ITEM_BYTES:
            raise BadMessage("logprobs: not as many as logprob_widths say")


def _check_errors(result: StepResult, handles: bytes) -> None:
    """Each row is in the columns or among the errors, once."""
    found = checked_column("handles", result.handles, 2**31 - 1).tolist() + [handle for handle, _ in result.errors]
    if sorted(found) != sorted(unpack_i32(handles).tolist()):
        raise BadMessage("handles, errors: not those of the rows that the plan samples")
    if max(len(message) for _, message in result.errors) > MAX_ERROR_CHARACTERS:
        raise BadMessage(f"errors: one has more than {MAX_ERROR_CHARACTERS} characters")
