"""Requests that kill a process, or make it hang, end with an error that names it; no other answer changes.

At the request's start, in the middle of its answer, or again and again after some tokens: tests/e2e/faults.
"""

import pytest

from loadtest.studies.killers import KINDS, compare

MAX_DEATHS = 10  # for each killer: deaths alone of suspects that go on count as chance (decision 50)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_requests_that_kill_are_lost(kind: str, count: int) -> None:
    found = compare(kind, count)
    assert found.lost == [] and found.num_different == 0
    role = kind.split("-")[0]
    assert found.now.killers == [f"500 the {role} died while it ran this request alone"] * count
    assert set(found.deaths) == {role} and found.deaths[role] <= MAX_DEATHS * count
