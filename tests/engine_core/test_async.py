"""Plans that are made before earlier results are back: the tokens are the same as without steps in flight."""

from collections import deque

import pytest

from engine_core.events import Finished
from engine_core.result_check import ResultCheck, ResultRows
from engine_core.scheduler import Scheduler
from engine_core.step_plan import StepResult, unpack_i32
from tests.engine_core.test_scheduler import add_all, make_scheduler
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle


class Pipe:
    """Scheduler and worker with up to `steps_in_flight` steps between them. Each result is checked against its plan."""

    def __init__(self, scheduler: Scheduler, worker: FakeWorker, steps_in_flight: int = 2) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}
        self.admitted: list[int] = []
        self._steps_in_flight = steps_in_flight
        self._results: deque[tuple[StepResult, ResultRows]] = deque()

    def plan(self) -> bool:
        """Makes the next plan and runs it. Returns False when there is none."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self._results.append((self.worker.execute(plan), self.scheduler.result_rows(plan)))
        return plan is not None

    def take(self) -> None:
        """Gives the scheduler the oldest result."""
        result, rows = self._results.popleft()
        ResultCheck(make_facts().vocab_size)(result, rows)
        events = self.scheduler.update(result)
        for tokens in events.new_tokens:
            self.outputs.setdefault(tokens.handle, []).extend(tokens.token_ids)
        self.finished |= {one.handle: one for one in events.finished}
        self.admitted += [one.handle for one in events.admitted]

    def run(self) -> None:
        while self.scheduler.has_unfinished or self._results:
            planned = len(self._results) < self._steps_in_flight and self.plan()
            if not planned or len(self._results) == self._steps_in_flight:
                self.take()


def test_the_next_step_goes_ahead_of_the_result() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 6))
    pipe = Pipe(scheduler, worker)
    assert pipe.plan() and pipe.plan()
    assert worker.step_tokens == [3, 1], "the second step computes a token that only the worker knows"
    pipe.run()
    assert pipe.outputs[0] == oracle([1, 2, 3], 6)
    assert scheduler.counters.steps == 6 and scheduler.counters.steps_ahead == 5


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_no_token_is_computed_beyond_max_tokens(steps_in_flight: int) -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, *(make_core_request(handle, [handle, 2, 3], handle + 1) for handle in range(4)))
    pipe = Pipe(scheduler, worker, steps_in_flight)
    pipe.run()
    assert pipe.outputs == {handle: oracle([handle, 2, 3], handle + 1) for handle in range(4)}
    assert sum(worker.step_tokens) == sum(3 + handle for handle in range(4))


def test_tokens_past_the_end_of_an_answer_are_dropped() -> None:
    prompt, expected = [7, 9], oracle([7, 9], 12)
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, prompt, 12, stop_token_ids=(expected[3],)))
    pipe = Pipe(scheduler, worker)
    pipe.run()
    assert pipe.outputs[0] == expected[:4]
    assert sum(worker.step_tokens) == 2 + 4, "the fourth token was computed before it was known to be the last"
    assert scheduler.kv.pool.num_free_blocks == scheduler.kv.pool.num_blocks


def test_a_preempted_request_waits_for_its_results_in_flight() -> None:
    """Its token in flight counts once its result is back, and is not sampled again."""
    scheduler, worker = make_scheduler(num_blocks=8, prefix_caching=False)
    prompts = {0: [1, 2, 3], 1: [4, 5, 6]}
    add_all(scheduler, *(make_core_request(handle, prompt, 20) for handle, prompt in prompts.items()))
    pipe = Pipe(scheduler, worker)
    while not scheduler.counters.preemptions:
        assert pipe.plan()
        if len(pipe._results) == 2:
            victim = next(iter(scheduler.waiting), None)
            known = victim.num_output_tokens if victim is not None else 0
            pipe.take()
    assert victim is not None and victim.last_step_id <= scheduler._last_result + 1
    assert victim.num_output_tokens == known + 1, "the result in flight counts"
    pipe.run()
    assert pipe.outputs == {handle: oracle(prompt, 20) for handle, prompt in prompts.items()}
    assert {one.num_output_tokens for one in pipe.finished.values()} == {20}


def test_an_abort_with_steps_in_flight_drops_both() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 9), make_core_request(1, [4, 5], 9))
    pipe = Pipe(scheduler, worker)
    assert pipe.plan() and pipe.plan()
    finished = scheduler.abort(0)
    assert finished is not None and finished.stop.reason == "abort"
    pipe.run()
    assert pipe.outputs == {1: oracle([4, 5], 9)}


def test_a_result_has_the_rows_of_its_plan_also_after_an_abort() -> None:
    """Each row has the logprobs of the request that it was planned for, even if another one has the slot by now."""
    scheduler, worker = make_scheduler(num_blocks=6, max_num_seqs=2, prefix_caching=False)
    counts = [None, 0, 3, None, 2]
    add_all(scheduler, *(make_core_request(h, [h, 2, 3], 12, logprobs=count) for h, count in enumerate(counts)))
    pipe = Pipe(scheduler, worker)
    assert pipe.plan()
    _, rows = pipe._results[0]
    assert unpack_i32(rows.logprob_widths).tolist() == [0, 1]
    assert pipe.plan()
    scheduler.abort(0)
    assert pipe.plan() and pipe.plan()
    assert unpack_i32(pipe._results[-1][1].handles).tolist() == [1, 2]
    assert unpack_i32(pipe._results[-1][1].logprob_widths).tolist() == [1, 4]
    pipe.run()
    assert scheduler.counters.preemptions
    assert pipe.outputs == {handle: oracle([handle, 2, 3], 12) for handle in range(1, len(counts))}


def test_slot_and_blocks_of_an_aborted_request_are_used_at_once() -> None:
    """Another request gets them while a step of the aborted one is in flight: a worker runs plans in order."""
    scheduler, worker = make_scheduler(num_blocks=3, max_num_seqs=1, prefix_caching=False)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 9), make_core_request(1, [4, 5], 9))
    pipe = Pipe(scheduler, worker)
    assert pipe.plan() and pipe.plan()
    released = {block.block_id for block in scheduler.running[0].blocks[0]}
    scheduler.abort(0)
    assert pipe.plan()
    (other,) = scheduler.running
    assert other.handle == 1 and other.slot == 0
    used = other.blocks[0]  # its own list, which lives on after the request ends
    pipe.run()
    assert released < {block.block_id for block in used} == {0, 1, 2}
    assert pipe.outputs == {1: oracle([4, 5], 9)}


def test_a_preempted_request_has_one_admitted_event_and_is_counted_once() -> None:
    """It is admitted twice, and its tokens are looked up twice."""
    scheduler, worker = make_scheduler(num_blocks=8)
    add_all(scheduler, make_core_request(0, [1, 2, 3], 20), make_core_request(1, [4, 5, 6], 20))
    pipe = Pipe(scheduler, worker)
    pipe.run()
    assert scheduler.counters.preemptions > 0 and pipe.finished[1].num_preemptions > 0
    assert pipe.admitted == [0, 1]
    assert (scheduler.counters.prefix_cache_queries, scheduler.counters.prefix_cache_hits) == (6, 0)
    assert {handle: len(tokens) for handle, tokens in pipe.outputs.items()} == {0: 20, 1: 20}


def test_an_admitted_event_comes_with_the_result_of_its_own_step() -> None:
    scheduler, worker = make_scheduler()
    add_all(scheduler, make_core_request(0, [1, 2, 3], 9))
    first = scheduler.schedule()
    assert first is not None
    add_all(scheduler, make_core_request(1, [4, 5], 9))
    second = scheduler.schedule()
    assert second is not None and unpack_i32(second.slots).tolist() == [0, 1]
    admitted = [[one.handle for one in scheduler.update(worker.execute(plan)).admitted] for plan in (first, second)]
    assert admitted == [[0], [1]]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_every_full_block_of_an_answer_is_found_by_the_next_turn(max_tokens: int, steps_in_flight: int) -> None:
    prompt, expected = [1, 2, 3], oracle([1, 2, 3], max_tokens)
    scheduler, worker = make_scheduler()
    pipe = Pipe(scheduler, worker, steps_in_flight)
    add_all(scheduler, make_core_request(0, prompt, max_tokens))
    pipe.run()
    add_all(scheduler, make_core_request(1, [*prompt, *expected, 5], 1))
    pipe.run()
    computed = len(prompt) + max_tokens - 1
    assert pipe.finished[1].num_cached_tokens == computed // 4 * 4
