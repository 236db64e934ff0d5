"""What a step may take follows from what it holds and from what steps took before."""

import pytest

from engine_core.step_deadline import DECAY, FACTOR, START_FACTOR, START_STEPS, StepDeadlines, Work, work_of
from engine_core.step_plan import unpack_i32
from tests.engine_core.test_scheduler import add_all, make_scheduler
from tests.fakes import make_core_request

DECODE, PREFILL = Work(8, 800), Work(2048, 2048 * 2048)


def warmed_up(floor: float = 1.0) -> StepDeadlines:
    deadlines = StepDeadlines(floor)
    for _ in range(START_STEPS):
        deadlines.measured(PREFILL, 100.0)
    return deadlines


def test_the_first_steps_of_a_worker_get_longer_and_teach_nothing() -> None:
    deadlines = StepDeadlines(2.0)
    for _ in range(START_STEPS):
        assert deadlines.deadline(DECODE) == deadlines.deadline(PREFILL) == 2.0 * START_FACTOR
        deadlines.measured(DECODE, 30.0)
    assert deadlines.deadline(DECODE) == 2.0
    deadlines.new_worker()
    assert deadlines.deadline(DECODE) == 2.0 * START_FACTOR


def test_nothing_gets_less_than_the_start_lock() -> None:
    deadlines = warmed_up()
    deadlines.measured(DECODE, 0.001)
    assert deadlines.deadline(DECODE) == 1.0


def test_a_long_prefill_is_not_mistaken_for_a_hang() -> None:
    """Only small steps were seen: a large one gets as much more time as it has more of anything."""
    deadlines = warmed_up()
    deadlines.measured(DECODE, 0.02)
    assert deadlines.deadline(PREFILL) == pytest.approx(FACTOR * 0.02 * PREFILL.attention / DECODE.attention)
    deadlines.measured(PREFILL, 3.0)
    assert deadlines.deadline(PREFILL) == FACTOR * 3.0
    assert deadlines.deadline(Work(2048, 4 * PREFILL.attention)) == FACTOR * 12.0, "the same tokens, far into a context"


def test_a_small_step_never_needs_longer_than_a_large_one_took() -> None:
    deadlines = warmed_up()
    deadlines.measured(PREFILL, 3.0)
    assert deadlines.deadline(DECODE) == FACTOR * 3.0, "all that is known so far"
    deadlines.measured(DECODE, 0.5)
    assert deadlines.deadline(DECODE) == FACTOR * 0.5
    assert deadlines.deadline(PREFILL) == FACTOR * 3.0


def test_what_one_slow_step_taught_fades() -> None:
    deadlines = warmed_up()
    deadlines.measured(DECODE, 10.0)
    for count in range(1, 4):
        deadlines.measured(DECODE, 0.01)
        assert deadlines.deadline(DECODE) == pytest.approx(FACTOR * 10.0 * DECAY**count)
    for _ in range(1000):
        deadlines.measured(DECODE, 0.01)
    assert deadlines.deadline(DECODE) == 1.0


def test_work_is_tokens_and_what_they_look_at() -> None:
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
