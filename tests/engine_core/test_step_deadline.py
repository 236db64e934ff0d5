"""The deadline of a step follows from its work and from the times of earlier steps."""

import pytest

from engine_core.step_deadline import DECAY, FACTOR, START_FACTOR, START_STEPS, StepDeadlines, Work, work_of
from engine_core.step_plan import unpack_i32
from tests.engine_core.test_scheduler import add_all, make_scheduler
from tests.fakes import make_core_request

DECODE, PREFILL = Work(8, 800), Work(2048, 2048 * 2048)


def warmed_up(minimum: float = 1.0) -> StepDeadlines:
    deadlines = StepDeadlines(minimum)
    for _ in range(START_STEPS):
        deadlines.measured(PREFILL, 100.0)
    return deadlines


def test_the_first_steps_of_a_worker_have_longer_deadlines_and_are_not_recorded() -> None:
    deadlines = StepDeadlines(2.0)
    for _ in range(START_STEPS):
        assert deadlines.deadline(DECODE) == deadlines.deadline(PREFILL) == 2.0 * START_FACTOR
        deadlines.measured(DECODE, 30.0)
    assert deadlines.deadline(DECODE) == 2.0
    deadlines.new_worker()
    assert deadlines.deadline(DECODE) == 2.0 * START_FACTOR


def test_no_deadline_is_below_the_minimum() -> None:
    deadlines = warmed_up()
    deadlines.measured(DECODE, 0.001)
    assert deadlines.deadline(DECODE) == 1.0


def test_a_long_prefill_is_not_mistaken_for_a_hang() -> None:
    """After small steps only, a large one gets time in proportion to its tokens or attention, whichever grew more."""
    deadlines = warmed_up()
    deadlines.measured(DECODE, 0.02)
    assert deadlines.deadline(PREFILL) == pytest.approx(FACTOR * 0.02 * PREFILL.attention / DECODE.attention)
    deadlines.measured(PREFILL, 3.0)
    assert deadlines.deadline(PREFILL) == FACTOR * 3.0
    assert deadlines.deadline(Work(2048, 4 * PREFILL.attention)) == FACTOR * 12.0, "as many tokens, far into a context"


def test_a_small_step_never_takes_longer_than_a_large_one_did() -> None:
    deadlines = warmed_up()
    deadlines.measured(PREFILL, 3.0)
    assert deadlines.deadline(DECODE) == FACTOR * 3.0, "only the large step has been recorded"
    deadlines.measured(DECODE, 0.5)
    assert deadlines.deadline(DECODE) == FACTOR * 0.5
    assert deadlines.deadline(PREFILL) == FACTOR * 3.0


def test_the_time_of_one_slow_step_decays() -> None:
    deadlines = warmed_up()
    deadlines.measured(DECODE, 10.0)
    for count in range(1, 4):
        deadlines.measured(DECODE, 0.01)
        assert deadlines.deadline(DECODE) == pytest.approx(FACTOR * 10.0 * DECAY**count)
    for _ in range(1000):
        deadlines.measured(DECODE, 0.01)
    assert deadlines.deadline(DECODE) == 1.0


def test_work_is_new_tokens_and_attention_pairs() -> None:
    scheduler, worker = make_scheduler(budget=16)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6), make_core_request(1, list(range(1, 21)), 6))
    found = []
    for _ in range(3):
        plan = scheduler.schedule()
        assert plan is not None
        found.append((unpack_i32(plan.num_new_tokens).tolist(), work_of(plan)))
        scheduler.update(worker.execute(plan))
    assert found == [
        ([3, 13], Work(16, 3 * 3 + 13 * 13)),
        ([1, 7], Work(8, 1 * 4 + 7 * 20)),
        ([1, 1], Work(2, 5 + 21)),
    ]
