"""Decides what each step computes. There is no prefill and no decode: every request has known tokens and computed
ones, and the computed catch up with the known under one token budget per step. Chunked prefill, prefix cache hits,
preemption and resumed requests all follow from that one rule.

Pure: requests in, plans out, results in, events out. Knows no text, no tensors, no sockets and no clock. What all the
running need at every step is worked out on columns (engine_core/batch.py); what is rare, request by request.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from engine_core.batch import Batch, Ints
from engine_core.events import Admitted, Finished, Logprobs, NewTokens, SchedulerStats, StepEvents
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request import Request, Stop, stop_at
from engine_core.result_check import SampledRows
from engine_core.results import ResultReader
from engine_core.step_plan import StepPlan, StepResult, pack_i32, unpack_i32
from engine_core.suspects import StepRule, Suspects
from engine_core.waiting import WaitingQueue


@dataclass(slots=True)
class Counters:
    steps: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    chunked_rows: int = 0
    scheduled_tokens: int = 0
    steps_ahead: int = 0


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step may hold, and who goes first."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0  # no request gets more tokens of a step that it shares; 0: no such limit
    by_priority: bool = False

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}):"
                " some running request would never get its turn"
            )


class Scheduler:
    """A request is in exactly one of `waiting`, `running`, or nowhere once it ended.

    Plans may be made before the results of earlier ones are back: what they sampled is then known to the worker alone,
    and a request's `sample_end` runs ahead of its tokens.
    """

    def __init__(self, kv: KVCacheManager, builder: PlanBuilder, config: SchedulerConfig) -> None:
        self.kv = kv
        self.waiting = WaitingQueue(config.by_priority)
        self.batch = Batch(config.max_num_seqs, self.waiting.rank)
        self.counters = Counters()
        self._builder = builder
        self._requests: dict[int, Request] = {}
        self._config = config
        self._suspects = Suspects()
        self._reader = ResultReader()
        self._last_result = 0  # id of the newest step whose result is back
        self._admitted: deque[tuple[int, Admitted]] = deque()  # with the steps whose results will tell of them

    @property
    def running(self) -> list[Request]:
        """By rank: the last of them gives way first."""
        return self.batch.running

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> Finished | None:
        """Queues a request. One whose resumed tokens already end it gets its terminal event at once, without a step."""
        assert request.handle not in self._requests, f"handle {request.handle} is in use"
        for count in range(1, request.num_output_tokens + 1):
            stop = stop_at(request, count)
            if stop is not None:
                return self._terminal(request, stop)
        self._reader.note_stops(request.sampling)
        self._suspects.watch(request)
        self._requests[request.handle] = request
        self.waiting.push(request)
        return None

    def abort(self, handle: int) -> Finished | None:
        """Ends a request and frees its blocks; None if it has ended already. Results still in flight are dropped."""
        request = self._requests.get(handle)
        return self._finish(request, Stop("abort")) if request is not None else None

    def reset_prefix_cache(self) -> None:
        """Nothing that is computed by now is found by anybody any more. The running go on with the blocks they have."""
        self.kv.forget_all(self.running)

    def restart(self, kv: KVCacheManager, builder: PlanBuilder) -> list[Finished]:
        """Continues with a new worker after the old one died: every running request waits again, with nothing computed.
        Tokens of steps in flight are drawn again, and are the same.

        Returns the requests that end here: a suspect that ran alone when the worker died again, and requests that do
        not fit into the new worker's KV cache.
        """
        rule = self._step_rule()
        self._suspects.strike(self.running, rule)
        for request in list(self.running):
            self.batch.leave(request)
            request.blocks, request.unpublished = [], None
            self.waiting.push(request)
        for request in self.waiting:
            request.last_step_id = 0
        self.kv, self._builder, self._last_result = kv, builder, 0
        self._admitted = deque((0, admitted) for _, admitted in self._admitted)
        errors = [(request, rule.restart_error(request, kv.capacity_tokens)) for request in self.waiting]
        return [self._finish(request, Stop("error", message=error)) for request, error in errors if error is not None]

    def schedule(self) -> StepPlan | None:
        """Plans the next step. Returns None when there is nothing to compute before a result comes."""
        batch, budget, rule = self.batch, self._config.max_num_batched_tokens, self._step_rule()
        preemptions_before = self.counters.preemptions
        if rule.waits_for_results and self._last_result < self._builder.step_id:
            return None

        # The running catch up, by rank, under one budget. Where blocks run out, the lowest-ranked are preempted.
        num_new = self._shares(budget, rule)
        while not self._make_room(num_new):
            self._preempt(rule.victim(self.running))
            num_new = self._shares(budget, rule)
        rows = np.flatnonzero(num_new)  # a request whose last sample is in flight has nothing left to compute
        slots, num_new = batch.slots[rows], num_new[rows]
        budget -= int(num_new.sum())

        # The waiting are admitted in order, as long as slots, blocks and budget last. None is admitted after a
        # preemption, or the preempted one would take its blocks back at once; nor with results still in flight.
        admitted: list[Request] = []
        admitted_new: list[int] = []
        preempted = self.counters.preemptions > preemptions_before
        while self.waiting and not preempted and budget > 0:
            request = self.waiting.peek()
            if request.last_step_id > self._last_result or not rule.admits(request):
                break
            if num_tokens := self._admit(request, budget):
                admitted.append(request)
                admitted_new.append(num_tokens)
                budget -= num_tokens
            elif rule.preempts_to_admit:
                self._preempt(rule.victim(self.running))
            else:
                break

        # The plan is built; from here on its tokens count as computed, for later plans run after it.
        if admitted:
            slots = np.append(slots, np.array([request.slot for request in admitted], dtype=np.int32))
            num_new = np.append(num_new, np.array(admitted_new, dtype=np.int32))
        if not slots.size:
            return None
        plan = self._builder.build(batch, slots, num_new, admitted)
        self.counters.scheduled_tokens += self._config.max_num_batched_tokens - budget
        self.counters.chunked_rows += len(slots) - int(unpack_i32(plan.sampled).sum())
        self.counters.steps += 1
        self.counters.steps_ahead += plan.step_id > self._last_result + 1
        return plan

    def update(self, result: StepResult) -> StepEvents:
        """Takes a step's result. Ids count only at a request's next index: whatever is stale falls out by that rule.

        Whether a request ends is looked at closely only where the id may end one, or max_tokens is reached.
        """
        events = StepEvents()
        self._last_result = result.step_id
        while self._admitted and self._admitted[0][0] <= result.step_id:
            events.admitted.append(self._admitted.popleft()[1])
        ids, rows = self._reader.rows(result)
        requests = self._requests
        for handle, start, count, end, may_end, logprobs in rows:
            request = requests.get(handle)
            if request is None or start != len(request.token_ids) - request.num_prompt_tokens:
                continue
            tokens = NewTokens(handle, start, ids[end - count : end], logprobs)
            if request.strikes:
                self._suspects.clear(request)
            if may_end or start + count >= request.sampling.max_tokens:
                self._append(request, tokens, events)
            else:
                request.token_ids += tokens.token_ids
                events.new_tokens.append(tokens)
        for handle, message in result.errors:
            if handle in self._requests:
                events.finished.append(self._finish(self._requests[handle], Stop("error", message=message)))
        return events

    def sampled_rows(self, plan: StepPlan) -> SampledRows:
        """What the result of the newest plan must answer. Call it before the batch changes again."""
        sampled = unpack_i32(plan.sampled) != 0
        slots = unpack_i32(plan.slots)[sampled]
        return SampledRows(
            handles=pack_i32(self.batch.handles[slots]),
            start_indices=pack_i32(unpack_i32(plan.output_indices)[sampled]),
            logprob_widths=pack_i32(self.batch.logprob_widths[slots]),
        )

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            waiting_tokens=self.waiting.num_tokens,
            num_free_blocks=self.kv.pool.num_free_blocks,
            num_blocks=self.kv.pool.num_blocks,
            num_steps=self.counters.steps,
            num_preemptions=self.counters.preemptions,
            prefix_cache_queries=self.counters.prefix_cache_queries,
            prefix_cache_hits=self.counters.prefix_cache_hits,
            num_chunked_rows=self.counters.chunked_rows,
            num_scheduled_tokens=self.counters.scheduled_tokens,
            num_steps_ahead=self.counters.steps_ahead,
        )

    @property
    def _cap(self) -> int:
        """Tokens of one request in a step that it shares, at most; 0: no such limit, or nobody to share with."""
        return self._config.long_prefill_token_threshold if len(self._requests) > 1 else 0

    def _step_rule(self) -> StepRule:
        return self._suspects.step_rule(self.running, self.waiting)

    def _shares(self, budget: int, rule: StepRule) -> Ints:
        """Tokens that each running request computes next, [running]: what it wants, by rank, up to the budget."""
        wanted = rule.restrict(self.batch.wanted(self._cap), self.batch)
        if wanted.sum() <= budget:
            return wanted
        before = np.cumsum(wanted) - wanted
        shares: Ints = np.clip(budget - before, 0, wanted).astype(np.int32)
        return shares

    def _make_room(self, num_new: Ints) -> bool:
        """Blocks for so many new tokens of each of the running. False: they do not suffice, some may have theirs."""
        batch, block_size = self.batch, self.kv.block_size
        ends = batch.num_computed[batch.slots] + num_new
        rows = np.flatnonzero(ends > batch.num_blocks[batch.slots] * block_size)
        for row, end in zip(rows.tolist(), ends[rows].tolist(), strict=True):
            request = self.running[row]
            if not self.kv.extend(request, end):
                return False
            batch.num_blocks[request.slot] = len(request.blocks[0])
        in_prompt = ends - num_new < batch.num_prompt[batch.slots]  # blocks of answers are published as they are known
        for row in np.flatnonzero(in_prompt).tolist():
            self.kv.publish(self.running[row], int(ends[row]))
        return True

    def _admit(self, request: Request, budget: int) -> int:
        """Moves the first of the waiting into the batch. Returns how many tokens it computes in the next step.

        Returns 0, and changes nothing, when no slot is free or too few blocks are.
        """
        if self.batch.is_full:
            return 0
        cached = self.kv.find_cached(request)
        num_computed = len(cached[0]) * self.kv.block_size
        num_tokens = min(request.num_tokens - num_computed, self._cap or budget, budget)
        owed = self.batch.num_owed_blocks(self.kv.block_size)
        if not self.kv.admit(request, cached, num_computed + num_tokens, owed):
            return 0
        self.kv.publish(request, num_computed + num_tokens)
        self.batch.join(self.waiting.pop(), num_computed)
        if request.num_cached_tokens is None:  # a request that comes back from a preemption was counted before
            self.counters.prefix_cache_queries += request.num_tokens if self.kv.prefix_caching else 0
            self.counters.prefix_cache_hits += num_computed
            request.num_cached_tokens = min(num_computed, request.num_prompt_tokens)
            self._admitted.append((self._builder.step_id + 1, Admitted(request.handle, request.num_cached_tokens)))
        return num_tokens

    def _preempt(self, request: Request) -> None:
        """Back to the queue, with nothing computed; its full blocks may still be found by their hash."""
        self.counters.preemptions += 1
        self._leave_batch(request, publish=True)
        request.num_preemptions += 1
        request.last_step_id = self._builder.step_id
        self.waiting.push(request)

    def _append(self, request: Request, tokens: NewTokens, events: StepEvents) -> None:
        """Up to the one that ends the request, if any does."""
        stop = None
        kept = 0
        while stop is None and kept < len(tokens.token_ids):
            request.token_ids.append(tokens.token_ids[kept])
            kept += 1
            stop = stop_at(request, tokens.start_index + kept)
        logprobs = tokens.logprobs
        if logprobs is not None:
            end = kept * logprobs.width
            logprobs = Logprobs(logprobs.width, logprobs.token_ids[:end], logprobs.values[:end])
        events.new_tokens.append(NewTokens(request.handle, tokens.start_index, tokens.token_ids[:kept], logprobs))
        if stop is not None:
            events.finished.append(self._finish(request, stop))

    def _finish(self, request: Request, stop: Stop) -> Finished:
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._leave_batch(request, publish=stop.reason != "error")
        del self._requests[request.handle]
        self._suspects.forget(request)
        return self._terminal(request, stop)

    def _leave_batch(self, request: Request, *, publish: bool) -> None:
        """`publish`: what is full of its blocks may be found by others."""
        assert request.slot is not None
        if publish:
            self.kv.publish(request, int(self.batch.num_computed[request.slot]))
        self._builder.released_slots.append(request.slot)
        self.batch.leave(request)
        self.kv.free(request)

    @staticmethod
    def _terminal(request: Request, stop: Stop) -> Finished:
        return Finished(
            request.handle,
            stop,
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_cached_tokens or 0,
            request.num_preemptions,
        )
