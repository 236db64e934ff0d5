"""Checks a worker's result before the scheduler uses it.

Handles and indices are not checked: the scheduler ignores an id that is not at a request's next index.
"""

import numpy as np

from engine_core.step_plan import ITEM_BYTES, StepPlan, StepResult
from engine_core.worker_messages import BadMessage

MAX_TOKENS = 1  # of one row: nothing drafts tokens yet


class ResultCheck:
    """For the worker of one model."""

    def __init__(self, vocab_size: int, max_logprobs: int) -> None:
        self._vocab_size = vocab_size
        self._max_width = max_logprobs + 1

    def __call__(self, result: StepResult, plan: StepPlan) -> None:
        """Raises BadMessage."""
        num_bytes = len(result.handles)
        if num_bytes % ITEM_BYTES or num_bytes > len(plan.slots):
            raise BadMessage(f"handles: {num_bytes} bytes for a plan of {len(plan.slots) // ITEM_BYTES} rows")
        if not len(result.start_indices) == len(result.counts) == num_bytes:
            raise BadMessage("start_indices, counts: not as many as handles")
        if len(result.errors) > len(plan.slots) // ITEM_BYTES:
            raise BadMessage(f"errors: {len(result.errors)} are more than rows")
        counts = _column("counts", result.counts, MAX_TOKENS)
        token_ids = _column("token_ids", result.token_ids, self._vocab_size - 1)
        if counts.sum() != len(token_ids):
            raise BadMessage(f"token_ids: {len(token_ids)}, where counts say {counts.sum()}")
        if result.logprobs or result.logprob_token_ids:
            self._check_logprobs(result, counts)

    def _check_logprobs(self, result: StepResult, counts: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> None:
        widths = _column("logprob_widths", result.logprob_widths, self._max_width)
        ids = _column("logprob_token_ids", result.logprob_token_ids, self._vocab_size - 1)
        if len(widths) != len(counts):
            raise BadMessage("logprob_widths: not as many as handles")
        if not (counts * widths).sum() == len(ids) == len(result.logprobs) / ITEM_BYTES:
            raise BadMessage("logprobs: not as many as logprob_widths say")


def _column(name: str, data: bytes, highest: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Reads the column as unsigned, so that one comparison also finds negative numbers."""
    if len(data) % ITEM_BYTES:
        raise BadMessage(f"{name}: {len(data)} bytes are no column")
    column = np.frombuffer(data, dtype="<u4")
    if column.max(initial=0) > highest:
        raise BadMessage(f"{name}: {column.astype(np.int32).tolist()[int(column.argmax())]} is not from 0 to {highest}")
    return column
