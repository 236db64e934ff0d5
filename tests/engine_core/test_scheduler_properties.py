"""Random sequences of add, abort, prepare, schedule, preempt and finish, with results that arrive up to two steps late.

Always: blocks are conserved; no block has two owners unless it was found by its key; the budget holds; every request
ends with exactly its own tokens, within a bounded number of steps; the worker is told once to drop each grammar.
"""

from collections import Counter, deque

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_core.events import Finished, StepEvents
from engine_core.flight_recorder import VERSION, FlightRecorder, RecordedScheduler, Recording, WorkerJoined
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.kv_groups import FULL, SlidingWindow
from engine_core.plan_builder import PlanBuilder
from engine_core.prefix_cache import ABSENT
from engine_core.preparations import DEADLY_GRAMMAR
from engine_core.replay import replay
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import StepResult
from engine_core.worker_messages import Prepare
from tests.fakes import FakeWorker, make_core_request, make_facts, oracle, prepare_message

# Few distinct beginnings, so that prefixes are shared often.
prompts = st.builds(
    lambda base, tail: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][:base] + tail,
    st.integers(0, 12),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)


sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 30])  # of windows; blocks have 4 tokens


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(8, 24),
        num_full=st.sampled_from([1, 1, 1, 2, 0]),
        windows=st.one_of(st.just([]), st.lists(sizes, min_size=1, max_size=3)),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 20),
        cached=st.booleans(),
        threshold=st.sampled_from([0, 0, 3]),
        by_priority=st.booleans(),
        steps_in_flight=st.integers(1, 3),
    )
    def start(
        self,
        num_blocks: int,
        num_full: int,
        windows: list[int],
        max_num_seqs: int,
        extra_budget: int,
        cached: bool,
        threshold: int,
        by_priority: bool,
        steps_in_flight: int,
    ) -> None:
        self.budget = max_num_seqs + extra_budget
        self.max_num_seqs = max_num_seqs
        kept = [FULL] * (num_full if windows else max(1, num_full))
        groups = (*kept, *(SlidingWindow(size, self.budget) for size in windows))
        self.facts = make_facts(
            num_blocks=num_blocks * len(groups), max_model_len=min(64, num_blocks * 4), kv_groups=groups
        )
        kv = KVCacheManager(self.facts.num_blocks, self.facts.block_size, groups, prefix_caching=cached)
        limits = SchedulerConfig(max_num_seqs, self.budget, threshold, by_priority)
        self.recorder = FlightRecorder()
        self.scheduler = RecordedScheduler(kv, PlanBuilder(1, len(groups)), limits, self.recorder)
        self.num_plans = 0
        self.worker = FakeWorker(self.facts)
        self.asked: deque[Prepare] = deque()  # preparations in progress
        self.cached = cached
        self.deaths = 0
        self.was_reset = False
        self.suspected = False
        self.steps_in_flight = steps_in_flight
        self.in_flight: deque[StepResult] = deque()
        self.expected: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, Finished] = {}
        self.prompts: dict[int, list[int]] = {}
        self.next_handle = 0

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 12),
        ignore_eos=st.booleans(),
        resumed=st.integers(0, 5),
        priority=st.integers(-1, 1),
        arrival=st.integers(0, 2),
        strikes=st.sampled_from([0, 0, 0, 2]),
        grammar=st.sampled_from(["", "", "", "no grammar", *map(str, range(12))]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        ignore_eos: bool,
        resumed: int,
        priority: int,
        arrival: int,
        strikes: int,
        grammar: str = "",
    ) -> None:
        max_tokens = min(max_tokens, self.facts.max_model_len - len(prompt))
        eos = () if ignore_eos else self.facts.eos_token_ids
        whole = oracle(prompt, max_tokens)
        if eos and 0 in whole:
            whole = whole[: whole.index(0) + 1]
        if grammar.isdigit():
            whole = whole[: int(grammar)]
        done = whole[: min(resumed, len(whole))]
        request = make_core_request(
            self.next_handle, prompt, max_tokens, self.facts, done, grammar=grammar, eos_token_ids=eos
        )
        request.priority, request.arrival, request.strikes = priority, arrival, strikes
        self.suspected |= bool(strikes)
        self.next_handle += 1
        self.expected[request.handle] = whole
        self.prompts[request.handle] = prompt
        self.outputs[request.handle] = list(done)
        finished = self.scheduler.add(request)
        ends = len(done) == max_tokens or (0 in done[-1:] and bool(eos))
        assert (finished is not None) == ends, "a complete grammar is found by its preparation"
        if finished is not None:
            self._take(StepEvents(finished=[finished]))

    @precondition(lambda self: self.finished)
    @rule(data=st.data(), tail=st.lists(st.integers(1, 3), min_size=1, max_size=4), max_tokens=st.integers(1, 6))
    def follow_up(self, data: st.DataObject, tail: list[int], max_tokens: int) -> None:
        """The next turn of a conversation, or a branch of it: some of its blocks may still be cached."""
        handle = data.draw(st.sampled_from(sorted(self.finished)))
        context = [*self.prompts[handle], *self.outputs[handle]]
        prompt = [*context[: data.draw(st.integers(0, len(context)))], *tail][: self.facts.max_model_len - 1]
        self.add(prompt, max_tokens, True, 0, 0, 0, 0)

    @precondition(lambda self: self.outputs.keys() - self.finished.keys())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.outputs.keys() - self.finished.keys())))
        finished = self.scheduler.abort(handle)
        assert finished is not None and finished.stop.reason == "abort"
        self.finished[handle] = finished
        assert self.scheduler.abort(handle) is None, "a late abort changes nothing"

    @rule()
    def prepare(self) -> None:
        """The worker is asked to prepare what it may."""
        self.asked += [prepare_message(request) for request in self.scheduler.prepare()]

    @precondition(lambda self: self.asked)
    @rule()
    def prepared(self) -> None:
        answer = self.worker.prepare(self.asked.popleft())
        finished = self.scheduler.prepared(answer.handle, answer.error, is_complete=answer.is_complete)
        if finished is not None:
            self._take(StepEvents(finished=[finished]))
        assert self.scheduler.prepared(answer.handle) is None, "an answer again changes nothing"

    @rule()
    def step(self) -> None:
        """Plans a step, or takes a result if `steps_in_flight` steps are in flight."""
        plan = self.scheduler.schedule() if len(self.in_flight) < self.steps_in_flight else None
        if plan is not None:
            self.num_plans += 1
            self.in_flight.append(self.worker.execute(plan))
            assert self.worker.step_tokens[-1] <= self.budget
            self._compare_with_a_full_plan()
        else:
            can_run = self.scheduler.running or self.scheduler.waiting.num_ready
            assert self.in_flight or not can_run or self.scheduler._preparations.holds_steps, (
                "no step is planned and none is in flight"
            )
            self.result()

    def _compare_with_a_full_plan(self) -> None:
        """The worker's state, built from diffs, equals the scheduler's."""
        batch, state = self.scheduler.batch, self.worker.state()
        assert state.keys() == {request.slot for request in self.scheduler.running}
        for request in self.scheduler.running:
            slot = request.slot
            handle, num_prompt, tokens, tables = state[slot]
            assert (handle, num_prompt) == (request.handle, request.num_prompt_tokens)
            assert tokens[: request.num_tokens] == request.token_ids, "the worker is ahead or level"
            assert len(tokens) == num_prompt + batch.sample_end[slot]
            for table, blocks in zip(tables, request.blocks, strict=True):
                ids = [None if block is ABSENT else block.block_id for block in blocks]
                assert table == ids[: batch.num_sent_blocks[slot]]
                assert batch.num_blocks[slot] == len(ids)

    @rule()
    def worker_dies(self) -> None:
        """Results in flight are lost; the next worker has as many blocks, and none of the old contents."""
        if not self.scheduler.has_unfinished or self.deaths == 6:
            return
        self.deaths += 1
        self.in_flight.clear()
        self.asked.clear()
        groups = self.facts.kv_groups
        kv = KVCacheManager(self.facts.num_blocks, self.facts.block_size, groups, self.cached)
        self.worker = FakeWorker(self.facts)
        ended = self.scheduler.restart(kv, PlanBuilder(2, len(groups)))
        prompts = {tuple(self.prompts[one.handle]) for one in ended}
        assert len(prompts) <= 1, "a suspect runs, and is prepared, alone; requests that would do the same end with it"
        self._take(StepEvents(finished=ended))

    @rule()
    def reset_prefix_cache(self) -> None:
        self.was_reset = True
        self.scheduler.reset_prefix_cache()
        assert not any(block.key for block in self.scheduler.kv.pool.blocks)

    @rule()
    def result(self) -> None:
        if self.in_flight:
            self._take(self.scheduler.update(self.in_flight.popleft()))

    def _take(self, events: StepEvents) -> None:
        for tokens in events.new_tokens:
            assert tokens.start_index == len(self.outputs[tokens.handle]), "a token index is the next one"
            self.outputs[tokens.handle] += tokens.token_ids
        for finished in events.finished:
            assert finished.handle not in self.finished, "exactly one terminal event"
            self.finished[finished.handle] = finished
            expected = self.expected[finished.handle]
            if finished.stop.param == "grammar":
                assert finished.stop.message == "not a number: no grammar"
                expected = expected[: len(self.outputs[finished.handle])]
            elif finished.stop.reason == "error":
                least = 3 if finished.stop.message == DEADLY_GRAMMAR else 2 if self.suspected else 4
                assert self.deaths >= least
                expected = expected[: len(self.outputs[finished.handle])]
            assert self.outputs[finished.handle] == expected

    @invariant()
    def blocks_are_conserved_and_owned_once(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool = self.scheduler.kv.pool
        pool.check()
        owners = Counter(
            id(block)
            for request in self.scheduler.running
            for blocks, given_back in zip(request.blocks, request.given_back, strict=True)
            for block in blocks[len(given_back) :]
        )
        used = [block for block in pool.blocks if block.ref_count]
        assert {id(block): block.ref_count for block in used} == owners
        keyed = [block for block in pool.blocks if block.key is not None]
        found = {id(block) for block in keyed} | {id(other) for block in keyed for other, _ in block.others}
        by_key = [id(block) in found for block in used if block.ref_count > 1]
        gone = self.was_reset or not self.facts.kv_groups[0].keeps_all  # a row may be gone before its other blocks
        assert gone or all(by_key), "shared without a key"
        assert pool.num_free_blocks + len(used) == pool.num_blocks

    @invariant()
    def every_request_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        waiting = [request.handle for request in self.scheduler.waiting]
        running = [request.handle for request in self.scheduler.running]
        assert sorted(waiting + running) == sorted(self.outputs.keys() - self.finished.keys())
        assert len(running) <= self.max_num_seqs
        slots = [request.slot for request in self.scheduler.running]
        assert len(set(slots)) == len(slots) and None not in slots
        assert all(request.slot is None and not request.blocks for request in self.scheduler.waiting)
        assert self.scheduler.stats().num_deferred == sum(bool(one.waits_for) for one in self.scheduler.waiting)
        assert not any(request.waits_for for request in self.scheduler.running)

    def teardown(self) -> None:
        """Every request left ends within a bound, with the right tokens, and leaves every block free."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(self._bound()):
            if not self.scheduler.has_unfinished and not self.in_flight:
                break
            self.prepare()
            while self.asked:
                self.prepared()
            self.step()
        assert not self.scheduler.has_unfinished, "a request was starved"
        assert self.scheduler.kv.pool.num_free_blocks == self.scheduler.kv.pool.num_blocks
        assert self.finished.keys() == self.outputs.keys()
        while self.asked:
            self.prepared()
        assert sorted(self.scheduler._builder.dropped_grammars) == sorted(self.worker.grammars)
        self._replay()

    def _replay(self) -> None:
        """Replays the recording, from the start and from the last worker on: the plans are the same."""
        content = msgspec.msgpack.encode(self.recorder.recording())
        recording = msgspec.msgpack.decode(content, type=Recording)
        assert replay(recording) == self.num_plans
        joined = [index for index, frame in enumerate(recording.frames) if isinstance(frame, WorkerJoined)]
        replay(Recording(VERSION, recording.frames[joined[-1] :]))

    def _bound(self) -> int:
        """Returns the most calls of step() until all requests have ended.

        The first-ranked running request is never preempted, and computes a chunk or a token in every step. So at worst
        the requests are computed one after the other. That is doubled, because a suspect or a request of higher rank
        may preempt the first one, which loses its computed tokens. It is doubled again: a plan and a result per step.
        Each suspect of a death during its preparation is prepared alone, without a step.
        """
        chunk = min(self.scheduler._config.long_prefill_token_threshold or self.budget, self.budget)
        left = [*self.scheduler.running, *self.scheduler.waiting]
        work = [-(-one.num_tokens // chunk) + one.sampling.max_tokens - one.num_output_tokens for one in left]
        return 2 * 2 * sum(work) + len(self.in_flight) + len(left) + 1


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
