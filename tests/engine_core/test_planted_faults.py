"""Conversations over a small cache with windows notice planted faults: a block that is given back one token early, and
one that is found or published although another request has taken it."""

import random
from collections.abc import Callable

import pytest

from engine_core import prefix_cache
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL, KvGroup, SlidingWindow
from engine_core.plan_builder import PlanBuilder
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from tests.engine_core.test_scheduler import add_all, run
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle

BUDGET, NUM_ROUNDS = 8, 200
WINDOW = SlidingWindow(6, BUDGET)
GROUPS = {"full and window": (FULL, WINDOW), "window": (WINDOW,), "two windows": (WINDOW, SlidingWindow(11, BUDGET))}
Plant = Callable[[pytest.MonkeyPatch], None]


def talk(groups: tuple[KvGroup, ...]) -> int:
    """Continues random conversations at the same time, or branches them. Returns how many tokens were found.

    Raises AssertionError for an answer with another token, and if a step reads other tokens' KV or a block that its
    request does not have."""
    facts = make_facts(num_blocks=(20 if FULL in groups else 12) * len(groups), max_model_len=64, kv_groups=groups)
    kv = KVCacheManager(facts.num_blocks, facts.block_size, groups, prefix_caching=True)
    scheduler = Scheduler(kv, PlanBuilder(1, len(groups)), SchedulerConfig(4, BUDGET))
    worker, source = FakeWorker(facts), random.Random(1)
    talks, handle, found = [[1, 2, 3, 4, 5, 6]] * 5, 0, 0
    for _ in range(NUM_ROUNDS):
        chosen = {handle + offset: number for offset, number in enumerate(source.sample(range(len(talks)), len(talks)))}
        handle += len(chosen)
        for number in chosen.values():
            length = len(talks[number])
            kept = length if length < 38 and source.random() < 0.5 else source.randrange(5, min(length, 38))
            talks[number] = [*talks[number][:kept], *source.choices(range(1, 4), k=source.randrange(1, 6))]
        lengths = {one: source.randrange(1, 22) for one in chosen}
        requests = [make_core_request(one, talks[number], lengths[one], facts) for one, number in chosen.items()]
        add_all(scheduler, *requests)
        outputs, finished = run(scheduler, worker)
        for one, number in chosen.items():
            assert outputs[one] == oracle(talks[number], lengths[one])
            talks[number] = talks[number] + outputs[one]
            found += finished[one].num_cached_tokens
    kv.pool.check()
    assert kv.pool.num_free_blocks == kv.pool.num_blocks
    return found


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants no fault."""


def given_back_early(monkeypatch: pytest.MonkeyPatch) -> None:
    first_read, give_back_at = SlidingWindow.first_read, SlidingWindow.give_back_at
    monkeypatch.setattr(SlidingWindow, "first_read", lambda self, num_computed: first_read(self, num_computed + 1))
    monkeypatch.setattr(SlidingWindow, "give_back_at", lambda self, *where: give_back_at(self, *where) - 1)


def taken_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "_is_valid", lambda entry: True)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_without_a_fault_all_answers_are_right(groups: tuple[KvGroup, ...]) -> None:
    assert talk(groups) > 500, "the prefix cache is hardly used"


@pytest.mark.parametrize("plant", [given_back_early, taken_since])
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_a_planted_fault_is_noticed(monkeypatch: pytest.MonkeyPatch, groups: tuple[KvGroup, ...], plant: Plant) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"has the KV of other tokens|reads a block that it does not have"):
        talk(groups)
