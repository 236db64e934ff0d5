"""Malformed step results from a worker are refused before the scheduler reads them."""

from typing import Any

import msgspec
import numpy as np
import pytest

from engine_core.result_check import ResultCheck, ResultRows
from engine_core.results import ResultReader
from engine_core.step_plan import BadMessage, StepResult, pack_i32

ROWS = ResultRows(pack_i32([5, 6]), pack_i32([0, 3]), pack_i32([0, 2]))  # request 6 has one top logprob
GOOD = StepResult(1, 1, *(pack_i32(column) for column in ([5, 6], [0, 3], [1, 1], [7, 49], [0, 2], [49, 1])), b"\0" * 8)
ONE: dict[str, Any] = {  # request 6 alone
    "handles": pack_i32([6]),
    "start_indices": pack_i32([3]),
    "counts": pack_i32([1]),
    "token_ids": pack_i32([7]),
    "logprob_widths": pack_i32([2]),
}
NONE: dict[str, Any] = dict.fromkeys((*ONE, "logprob_token_ids", "logprobs"), b"")


def logprobs(*widths: int) -> dict[str, Any]:
    """Returns a result's logprob columns with these widths, consistent with each other."""
    count = sum(widths)
    columns = {"logprob_widths": pack_i32(list(widths)), "logprob_token_ids": pack_i32([1] * count)}
    return columns | {"logprobs": b"\0" * 4 * count}


BAD_RESULTS: dict[str, dict[str, Any]] = {
    "half a number": {"handles": b"\0" * 7},
    "another request": {"handles": pack_i32([5, 7])},
    "another order": {"handles": pack_i32([6, 5])},
    "no rows": dict.fromkeys(("handles", "start_indices", "counts", "token_ids"), b""),
    "a row without a token": {"counts": pack_i32([1, 0]), "token_ids": pack_i32([7])},
    "counts missing": {"counts": pack_i32([1])},
    "starts missing": {"start_indices": b""},
    "another start": {"start_indices": pack_i32([0, 4])},
    "a count below zero": {"counts": pack_i32([3, -1])},
    "two tokens of one row": {"counts": pack_i32([2, 0])},
    "ids missing": {"token_ids": pack_i32([7])},
    "an id too many": {"token_ids": pack_i32([7, 8, 9])},
    "an id beyond the vocabulary": {"token_ids": pack_i32([7, 50])},
    "an id below zero": {"token_ids": pack_i32([7, -1])},
    "a width below zero": {"logprob_widths": pack_i32([0, -2])},
    "a width beyond the limit": {"logprob_widths": pack_i32([0, 22])},
    "widths missing": {"logprob_widths": b""},
    "logprobs missing": {"logprobs": b"\0" * 4},
    "logprobs without ids": {"logprob_token_ids": b""},
    "half a logprob": {"logprobs": b"\0" * 7},
    "a logprob's id beyond the vocabulary": {"logprob_token_ids": pack_i32([49, 50])},
    "an error and a row of one request": {"errors": [(6, "broken")]},
    "an error of another request": {"errors": [(7, "broken")]},
    "an error of a megabyte": {
        "errors": [(6, "x" * 2**20)],
        "handles": pack_i32([5]),
        "start_indices": pack_i32([0]),
        "counts": pack_i32([1]),
        "token_ids": pack_i32([7]),
        "logprob_widths": pack_i32([0]),
        "logprob_token_ids": b"",
        "logprobs": b"",
    },
    "another width than requested": {"logprob_widths": pack_i32([0, 1])},
    "no logprobs of a request with logprobs": logprobs(0, 0),
    "logprobs of a request without logprobs": logprobs(1, 2),
    "one logprob too many": logprobs(0, 3),
    "one logprob too few": logprobs(0, 1),
    "widths without logprobs": {"logprob_token_ids": b"", "logprobs": b""},
    "no logprob column": dict.fromkeys(("logprob_widths", "logprob_token_ids", "logprobs"), b""),
    "a cause without an error": {"error_causes": [""]},
    "fewer causes than errors": NONE | {"errors": [(6, "broken"), (5, "broken")], "error_causes": [""]},
    "a long cause": ONE | {"errors": [(5, "broken")], "error_causes": ["x" * 101]},
    "a complete grammar of another request": {"completed": [7]},
    "a complete grammar twice": {"completed": [5, 5]},
    "a complete grammar of a request that reports an error": ONE | {"errors": [(5, "broken")], "completed": [5]},
    "an error twice": ONE | {"errors": [(5, "broken"), (5, "broken")]},
    "a row of a request that reports an error": ONE | {"errors": [(6, "broken")]},
    "a width of a request that reports an error": {"errors": [(5, "broken")]} | ONE | {"logprob_widths": ROWS[2]},
}


def test_a_valid_result_passes() -> None:
    check = ResultCheck(50)
    check(GOOD, ROWS)
    check(StepResult(1, 1, *[b""] * 7), ResultRows(b"", b"", b""))
    check(StepResult(1, 1, *[b""] * 7, [(6, "broken"), (5, "broken")]), ROWS)
    check(msgspec.structs.replace(GOOD, errors=[(5, "broken")], **ONE), ROWS)
    check(msgspec.structs.replace(GOOD, errors=[(5, "broken")], error_causes=["x" * 100], **ONE), ROWS)
    check(StepResult(1, 1, *[b""] * 7, [(6, "broken"), (5, "broken")], ["", "unknown"]), ROWS)
    check(msgspec.structs.replace(GOOD, completed=[6, 5]), ROWS)
    check(msgspec.structs.replace(GOOD, errors=[(5, "broken")], completed=[6], **ONE), ROWS)


@pytest.mark.parametrize("change", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_malformed_result_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        ResultCheck(50)(msgspec.structs.replace(GOOD, **change), ROWS)


def test_random_columns_are_refused_or_read() -> None:
    """Results that pass the check are readable by the scheduler's reader."""
    source, check, passed = np.random.default_rng(7), ResultCheck(50), 0
    for _ in range(5000):
        rows = ResultRows(*(pack_i32(source.integers(0, 3, size=1)) for _ in range(3)))
        columns = [pack_i32(source.integers(-1, 3, size=source.choice([1, 1, 1, 2]))) for _ in range(7)]
        for index, right in ((0, rows.handles), (1, rows.start_indices), (4, rows.logprob_widths)):
            columns[index] = right if source.random() < 0.9 else columns[index]
        result = StepResult(1, 1, *columns)
        try:
            check(result, rows)
        except BadMessage:
            continue
        passed += 1
        list(ResultReader().rows(result)[1])
    assert passed > 20
