"""The short form of `make recovery-test` (random kills change no answer), and tests of its schedule and comparison."""

import copy
import os
import random
from typing import Any

import pytest

from tests.recovery.__main__ import kill_at_random
from tests.recovery.kills import AGAIN, KILLS, ONE, PREFILL, ROLES, TWO, Event, rest_of, schedule
from tests.recovery.workload import differences

SEED = int(os.environ.get("TANDEM_RECOVERY_SEED") or random.randrange(10**6))


@pytest.mark.long
def test_random_kills_change_no_answer() -> None:
    print(f"python -m tests.recovery --seed {SEED} --kills 4")
    assert len(kill_at_random("two tokenizers", SEED, 4)) == 4


def test_a_schedule_has_every_kind_and_every_role() -> None:
    rounds = schedule(random.Random(3), 30)
    events = [event for one in rounds for event in one]
    assert sum(KILLS[event.kind] for event in events) == 30
    assert {event.kind for event in events} == set(KILLS)
    assert {role for event in events for role in event.roles} == set(ROLES)
    assert schedule(random.Random(3), 30) == rounds, "the seed repeats it"


@pytest.mark.parametrize(
    ("event", "num_kills", "left"),
    [
        (Event(PREFILL, ("engine",)), 0, [Event(PREFILL, ("engine",))]),
        (Event(AGAIN, ("worker",)), 1, [Event(ONE, ("worker",))]),
        (Event(TWO, ("worker", "engine")), 1, [Event(ONE, ("engine",))]),
        (Event(TWO, ("worker", "engine")), 2, []),
    ],
)
def test_missed_kills_are_left_for_another_round(event: Event, num_kills: int, left: list[Event]) -> None:
    assert rest_of(event, num_kills) == left


FOLD: dict[str, Any] = {
    "choices": [{"text": "ab", "token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.5, -1.5]}}],
    "usage": {"completion_tokens": 2},
}


def test_equal_folds_have_no_differences() -> None:
    assert list(differences(copy.deepcopy(FOLD), FOLD)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("text", "aba"), ("token_ids", [1]), ("token_ids", [2, 1]), ("logprobs", {"token_logprobs": [-0.5, -1.5000001]})],
)
def test_a_different_fold_is_reported(name: str, value: Any) -> None:
    other = copy.deepcopy(FOLD)
    other["choices"][0][name] = value
    found = list(differences(other, FOLD))
    assert found and all(one.startswith(f".choices[0].{name}") for one in found)
