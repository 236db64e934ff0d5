"""Reads a step's result: turns its columns into rows, and counts the ids in each that may end a request.

Knows no requests.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from engine_core.batch import Ints
from engine_core.events import Logprobs
from engine_core.step_plan import SamplingParams, StepResult, unpack_i32

# handle, start_index, number of ids, their end in the list of all ids, how many of them may end the request, logprobs
Row = tuple[int, int, int, int, int, Logprobs | None]


class ResultReader:
    """Keeps the stop ids of all requests so far in one set, so that the scheduler examines only rows that have one, or
    that complete a grammar."""

    def __init__(self) -> None:
        self._is_stop = np.zeros(1, dtype=np.bool_)  # [largest stop id + 2], by token id; the last entry is False

    def add_stop_ids(self, sampling: SamplingParams) -> None:
        """Adds the ids that may end a request with these parameters."""
        token_ids = list(sampling.ending_token_ids)
        missing = max(token_ids, default=-1) + 2 - len(self._is_stop)
        if missing > 0:
            self._is_stop = np.pad(self._is_stop, (0, missing))
        self._is_stop[token_ids] = True

    def rows(self, result: StepResult) -> tuple[list[int], Iterator[Row]]:
        """Returns (the token ids of all rows in one list, an iterator over the rows)."""
        counts, token_ids = unpack_i32(result.counts), unpack_i32(result.token_ids)
        ends, handles = np.cumsum(counts), unpack_i32(result.handles)
        num_ends = self._num_stops(token_ids, ends, counts)
        if result.completed:
            num_ends = num_ends + np.isin(handles, result.completed)
        rows = zip(
            handles.tolist(),
            unpack_i32(result.start_indices).tolist(),
            counts.tolist(),
            ends.tolist(),
            num_ends.tolist(),
            _logprobs(result, counts),
            strict=True,
        )
        return token_ids.tolist(), rows

    def _num_stops(self, token_ids: Ints, ends: Ints, counts: Ints) -> Ints:
        """Returns how many ids of each row are stop ids, [rows]; `ends` and `counts` are [rows] too."""
        found = self._is_stop[np.minimum(token_ids, len(self._is_stop) - 1)]
        before = np.concatenate(([0], np.cumsum(found)))
        num_stops: Ints = before[ends] - before[ends - counts]
        return num_stops


def _logprobs(result: StepResult, counts: Ints) -> Iterable[Logprobs | None]:
    """Returns one entry per row; None where the request asked for no logprobs. `counts` is [rows]."""
    if not result.logprobs:
        return [None] * len(counts)
    widths = unpack_i32(result.logprob_widths)
    ends = np.cumsum(counts * widths).tolist()
    ids, values = unpack_i32(result.logprob_token_ids).tolist(), np.frombuffer(result.logprobs, dtype="<f4").tolist()
    spans = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    return [
        Logprobs(width, ids[span], values[span]) if width else None
        for width, span in zip(widths.tolist(), spans, strict=True)
    ]
