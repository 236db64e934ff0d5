"""What a part does with faults that it cannot make, and which pauses it counts."""

import random
import types
from collections import Counter
from typing import Any

import pytest

from tests.chaos import part as part_module
from tests.chaos.attempt import Attempt
from tests.chaos.part import ONE_AFTER_ANOTHER, Part
from tests.chaos.processes import Victim
from tests.chaos.report import Report
from tests.chaos.schedule import CUT, ENGINE, KILL, RESTART, WORKER, Blow, Strike

PLANNED = [
    Strike((Blow(CUT, ENGINE), Blow(KILL, WORKER)), RESTART),
    Strike((Blow(KILL, ENGINE),), RESTART),
]


class Aimed:
    def __init__(self, *_: object) -> None: ...

    async def wait(self, phase: str, seconds: float) -> bool:
        return True


def part_of(num_live: int = 100) -> Part:
    quiet: Any = types.SimpleNamespace(leaks=[], hangs=[])
    load: Any = types.SimpleNamespace(in_flight=[Attempt(None)] * num_live, failures=[], counts={})  # type: ignore[arg-type]
    server: Any = None
    return Part(server, load, server, quiet, random.Random(1), Report(), show=lambda _: None)


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to processes that are not there: the first cut finds no connection."""
    done: list[str] = []

    def strike(server: object, blow: Blow, victim: Victim) -> None:
        done.append(f"{blow.kind} {victim.name}")
        if done == ["cut engine"]:
            raise ConnectionError("no connection")

    def choose(server: object, blows: tuple[Blow, ...], rng: object) -> list[Victim]:
        return [Victim(1, blow.role, blow.role) for blow in blows]

    for name, value in {"strike": strike, "choose": choose, "Aim": Aimed, "RESTART_SECONDS": (0.0, 0.0)}.items():
        monkeypatch.setattr(part_module, name, value)
    return done


async def test_a_fault_that_was_missed_comes_before_the_next_one(struck: list[str]) -> None:
    part, planned = part_of(), iter(PLANNED)
    for _ in range(3):
        await part.strike_next(lambda: next(planned))
    assert struck == ["cut engine", "kill worker", "cut engine", "kill engine"]
    assert part.report.faults == {"worker, kill": 1, "engine, cut": 1, "engine, kill": 1}
    assert (part.report.missed, part.report.together) == (1, 0)


async def test_no_fault_comes_while_too_few_requests_are_live(struck: list[str]) -> None:
    part = part_of(num_live=19)
    await part.strike_next(lambda: PLANNED[0])
    assert not struck and part.report.missed == 2 and not part.report.faults


async def test_a_pause_in_which_a_further_fault_came_counts_as_one(struck: list[str]) -> None:
    part, planned = part_of(), iter(PLANNED[1:] * 2)
    for _ in range(2):
        await part.strike_next(lambda: next(planned))
    first, second = part.moments
    before = [first - 3, first - 2, first - 1]
    part.on_end(Attempt(None, started=first - 4, times=[*before, second + 9, second + 10]))  # type: ignore[arg-type]
    part.on_end(Attempt(None, started=first + (second - first) / 2, times=[second - 1e-9, second + 2, second + 3]))  # type: ignore[arg-type]
    assert {label: counts.total() for label, counts in part.report.pauses.items()} == {
        ONE_AFTER_ANOTHER: 1,
        "engine, kill": 1,
    }
    assert isinstance(part.report.pauses[ONE_AFTER_ANOTHER], Counter)
