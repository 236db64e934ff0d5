"""A result must have what its plan samples and scores; tests/security/test_broken_results.py breaks its columns."""

import msgspec
import pytest

from engine_core.result_check import ResultCheck
from engine_core.step_plan import BadMessage
from tests.engine_core.test_prompt_logprobs import scored_request
from tests.engine_core.test_scheduler import add_all, make_scheduler
from tests.fakes import make_facts


@pytest.mark.parametrize(
    "change",
    [
        {"start_index": 2},
        {"handle": 1},
        {"width": 2},
        {"ranks": b"\1\0\0\0"},
        {"ranks": bytes(4 * 29)},
        {"token_ids": b"\xff" * 4 * 3 * 29},
        {"logprobs": b""},
    ],
)
def test_wrong_logprobs_of_a_prompt_are_refused(change: dict[str, object]) -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, scored_request(0))
    plan = scheduler.schedule()
    assert plan is not None
    rows, result = scheduler.result_rows(plan), worker.execute(plan)
    check = ResultCheck(make_facts().vocab_size)
    check(result, rows)
    result.prompt_logprobs = [msgspec.structs.replace(result.prompt_logprobs[0], **change)]
    with pytest.raises(BadMessage, match="prompt_logprobs"):
        check(result, rows)
    result.prompt_logprobs = []
    with pytest.raises(BadMessage, match="prompt_logprobs"):
        check(result, rows)


def test_an_error_of_a_row_leaves_the_logprobs_of_its_prompt() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, scored_request(0, [1, 2, 3]))
    for _ in range(2):
        plan = scheduler.schedule()
        assert plan is not None
        rows, result = scheduler.result_rows(plan), worker.execute(plan)
        if result.handles:
            break
        scheduler.update(result)
    assert result.prompt_logprobs
    failed = msgspec.structs.replace(
        result, handles=b"", start_indices=b"", counts=b"", token_ids=b"", logprob_widths=b"", errors=[(0, "NaN")]
    )
    ResultCheck(make_facts().vocab_size)(failed, rows)
