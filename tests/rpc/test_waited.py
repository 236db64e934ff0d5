"""How long a request has waited, over processes: each one's own part on top of what its caller said."""

import pytest

from services.rpc.waited import MAX_WAITED_MS, Waited
from tests.clock import Clock


def test_the_callers_part_is_included(clock: Clock) -> None:
    new, resumed = Waited(0), Waited(250)
    assert (new.ms(), resumed.ms()) == (0, 250)
    clock.now += 1.5
    assert (new.ms(), resumed.ms()) == (1500, 1750)


def test_a_part_of_a_millisecond_is_not_counted(clock: Clock) -> None:
    waited = Waited(0)
    clock.now += 0.0009
    assert waited.ms() == 0


@pytest.mark.parametrize("before", [MAX_WAITED_MS, MAX_WAITED_MS - 5])
def test_no_value_exceeds_the_field(clock: Clock, before: int) -> None:
    waited = Waited(before)
    clock.now += 1
    assert waited.ms() == MAX_WAITED_MS
