"""Logprobs of prompts: each token's once, in order, however the prompt is cached, chunked, preempted or resumed."""

from collections import deque

import numpy as np
import pytest

from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request
from engine_core.result_check import ResultCheck, ResultRows
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import MAX_SCORED_TOKENS, PromptLogprobs, StepResult, unpack_i32
from tests.engine_core.test_scheduler import add_all, make_scheduler
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle, prompt_oracle

PROMPT = [1 + position * 7 % 49 for position in range(30)]
WIDTH = 3
Scored = list[tuple[list[int], list[float]]]


class Scorer:
    """Runs a scheduler and a worker with two steps in flight; keeps tokens, and logprobs of prompts by position."""

    def __init__(self, scheduler: Scheduler, worker: FakeWorker) -> None:
        self.scheduler, self.worker = scheduler, worker
        self.tokens: dict[int, list[int]] = {}
        self.scored: dict[int, dict[int, tuple[list[int], list[float]]]] = {}
        self.num_scored_of_steps: list[int] = []
        self.results: deque[tuple[StepResult, ResultRows]] = deque()

    def plan(self) -> bool:
        plan = self.scheduler.schedule()
        if plan is not None:
            self.results.append((self.worker.execute(plan), self.scheduler.result_rows(plan)))
        return plan is not None

    def take(self) -> None:
        result, rows = self.results.popleft()
        ResultCheck(make_facts().vocab_size)(result, rows)
        self.num_scored_of_steps.append(sum(one.num_tokens for one in result.prompt_logprobs))
        events = self.scheduler.update(result)
        for one in events.prompt_logprobs:
            assert one.handle not in self.tokens, "they come before the first token"
            self._keep(one)
        for new in events.new_tokens:
            self.tokens.setdefault(new.handle, []).extend(new.token_ids)

    def _keep(self, one: PromptLogprobs) -> None:
        ids, values = unpack_i32(one.token_ids).tolist(), np.frombuffer(one.logprobs, dtype="<f4").tolist()
        found = self.scored.setdefault(one.handle, {})
        for index in range(one.num_tokens):
            span = slice(index * one.width, (index + 1) * one.width)
            assert one.start_index + index not in found, "a token twice"
            found[one.start_index + index] = (ids[span], values[span])

    def run(self) -> None:
        while self.scheduler.has_unfinished or self.results:
            if not (len(self.results) < 2 and self.plan()) or len(self.results) == 2:
                self.take()

    def of(self, handle: int) -> Scored:
        """Returns the logprobs of a prompt, without its first token."""
        found = self.scored[handle]
        assert list(found) == list(range(min(found), min(found) + len(found))), "in order, without a gap"
        return list(found.values())


def scored_request(handle: int, prompt: list[int] = PROMPT, **more: object) -> Request:
    return make_core_request(handle, prompt, 4, prompt_logprobs=WIDTH - 1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [8, 9, 64])
def test_every_prompt_token_has_its_logprobs(budget: int) -> None:
    pipe = Scorer(*make_scheduler(budget=budget))
    add_all(pipe.scheduler, scored_request(0), make_core_request(1, PROMPT[:9], 4), scored_request(2, PROMPT[5:]))
    pipe.run()
    assert pipe.of(0) == prompt_oracle(PROMPT, WIDTH) and pipe.of(2) == prompt_oracle(PROMPT[5:], WIDTH)
    assert 1 not in pipe.scored
    assert pipe.tokens == {0: oracle(PROMPT, 4), 1: oracle(PROMPT[:9], 4), 2: oracle(PROMPT[5:], 4)}


def test_a_prompt_of_one_token_has_none() -> None:
    pipe = Scorer(*make_scheduler())
    add_all(pipe.scheduler, scored_request(0, [7]))
    pipe.run()
    assert pipe.scored == {} and pipe.tokens[0] == oracle([7], 4)


def test_the_prefix_cache_is_not_read_for_them_but_filled() -> None:
    scheduler, worker = make_scheduler()
    pipe = Scorer(scheduler, worker)
    for handle in (0, 1):
        add_all(scheduler, scored_request(handle))
        pipe.run()
    assert pipe.of(1) == prompt_oracle(PROMPT, WIDTH)
    assert scheduler.counters.prefix_cache_hits == 0
    add_all(scheduler, make_core_request(2, PROMPT, 4))
    pipe.run()
    assert scheduler.counters.prefix_cache_hits == len(PROMPT) // 4 * 4
    assert pipe.tokens[2] == pipe.tokens[1] == oracle(PROMPT, 4)


@pytest.mark.parametrize("received", range(len(PROMPT) + 1))
def test_a_resume_goes_on_behind_what_was_received_and_reads_the_cache_up_to_there(received: int) -> None:
    scheduler, worker = make_scheduler()
    pipe = Scorer(scheduler, worker)
    add_all(scheduler, make_core_request(0, PROMPT, 1))
    pipe.run()
    add_all(scheduler, scored_request(1, scored_from=received))
    pipe.run()
    first = max(1, received)
    expected = prompt_oracle(PROMPT, WIDTH)[first - 1 :]
    assert (pipe.of(1) if expected else pipe.scored.get(1, [])) == expected
    reusable = first - 1 if first < len(PROMPT) else len(PROMPT) - 1
    assert scheduler.counters.prefix_cache_hits == reusable // 4 * 4
    assert pipe.tokens[1] == oracle(PROMPT, 4)


@pytest.mark.parametrize("steps", range(1, 12))
def test_a_preempted_request_loses_and_repeats_none(steps: int) -> None:
    scheduler, worker = make_scheduler(budget=8)
    pipe = Scorer(scheduler, worker)
    add_all(scheduler, scored_request(0), make_core_request(1, PROMPT[::-1], 8))
    for _ in range(steps):
        if pipe.plan() and len(pipe.results) == 2:
            pipe.take()
    if scheduler.running:
        scheduler._preempt(scheduler.running[0])
    pipe.run()
    assert pipe.of(0) == prompt_oracle(PROMPT, WIDTH)
    assert pipe.tokens == {0: oracle(PROMPT, 4), 1: oracle(PROMPT[::-1], 8)}


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_death_of_the_worker_loses_and_repeats_none(steps: int) -> None:
    scheduler, worker = make_scheduler(budget=8)
    pipe = Scorer(scheduler, worker)
    add_all(scheduler, scored_request(0))
    for _ in range(steps):
        if pipe.plan() and len(pipe.results) == 2:
            pipe.take()
    pipe.results.clear()
    facts = make_facts()
    assert scheduler.restart(KVCacheManager(64, facts.block_size, (FULL,), True), PlanBuilder(2, 1)) == []
    pipe.worker = FakeWorker(facts)
    pipe.run()
    assert pipe.of(0) == prompt_oracle(PROMPT, WIDTH) and pipe.tokens[0] == oracle(PROMPT, 4)


def test_a_short_prompt_does_not_wait_for_long_ones() -> None:
    facts = make_facts(num_blocks=2048, max_model_len=2048)
    scheduler = Scheduler(KVCacheManager(2048, 4, (FULL,), True), PlanBuilder(1, 1), SchedulerConfig(8, 2048))
    pipe = Scorer(scheduler, FakeWorker(facts))
    for handle in range(4):
        prompt = [1 + (position * 7 + handle) % 49 for position in range(900)]
        add_all(scheduler, make_core_request(handle, prompt, 2, facts, prompt_logprobs=0))
    add_all(scheduler, make_core_request(9, PROMPT, 2, facts, prompt_logprobs=0))
    for _ in range(6):
        if pipe.plan():
            pipe.take()
    assert list(pipe.tokens) == [9], "each has a share of a step"


def test_wide_logprobs_count_as_several_tokens() -> None:
    facts = make_facts(num_blocks=2048, max_model_len=2048, max_logprobs=49)
    scheduler = Scheduler(KVCacheManager(2048, 4, (FULL,), True), PlanBuilder(1, 1), SchedulerConfig(8, 2048))
    pipe = Scorer(scheduler, FakeWorker(facts))
    prompt = [1 + position * 7 % 49 for position in range(400)]
    add_all(scheduler, make_core_request(0, prompt, 2, facts, prompt_logprobs=29))
    pipe.run()
    assert max(pipe.num_scored_of_steps) == MAX_SCORED_TOKENS // 2, "30 entries are 2 times 21 at most"
    assert pipe.of(0) == prompt_oracle(prompt, 30)


def test_a_step_has_few_of_them_and_others_go_on() -> None:
    facts = make_facts(num_blocks=2048, max_model_len=2048)
    kv = KVCacheManager(2048, facts.block_size, (FULL,), True)
    scheduler, worker = Scheduler(kv, PlanBuilder(1, 1), SchedulerConfig(8, 2048)), FakeWorker(facts)
    pipe = Scorer(scheduler, worker)
    prompts = [[1 + (position * 7 + row) % 49 for position in range(700)] for row in range(3)]
    for handle, prompt in enumerate(prompts):
        add_all(scheduler, make_core_request(handle, prompt, 4, facts, prompt_logprobs=0))
    add_all(scheduler, make_core_request(3, prompts[0][:600], 4, facts))
    pipe.run()
    assert max(pipe.num_scored_of_steps) <= MAX_SCORED_TOKENS + 3
    assert len(pipe.num_scored_of_steps) < 3 * 700 / MAX_SCORED_TOKENS + 12, "and as many as it may have"
    for handle, prompt in enumerate(prompts):
        assert pipe.of(handle) == prompt_oracle(prompt, 1) and pipe.tokens[handle] == oracle(prompt, 4)
    assert next(iter(pipe.tokens)) == 3, "its prompt is computed in one step"
