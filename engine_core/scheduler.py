"""Decides what each step computes. There is no prefill and no decode: every request has known tokens and computed
tokens, and each step computes more of the known ones, under one token budget. Chunked prefill, prefix cache hits,
preemption and resumed requests all follow from that one rule.

Pure: requests in, plans out, results in, events out. No text, tensors, sockets or clock. Work that every running
request needs at every step is done on columns (engine_core/batch.py); rare work is done request by request.
"""

from collections import deque

import numpy as np

from engine_core.batch import Batch, Ints
from engine_core.events import Admitted, Finished, NewTokens, SchedulerStats, StepEvents, finished
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.preparations import Preparations, restart_error
from engine_core.request import Request, Stop, completion, stop_at, take_prompt_logprobs
from engine_core.result_check import ResultRows
from engine_core.results import ResultReader
from engine_core.row_errors import param_at_fault
from engine_core.scheduler_config import MOST_KNOWN_TOKENS, SchedulerConfig
from engine_core.scheduler_counters import Counters, scheduler_stats
from engine_core.step_plan import StepPlan, StepResult, pack_i32, unpack_i32
from engine_core.suspects import NO_SUSPECT, StepRule, Suspects
from engine_core.waiting import WaitingQueue


class Scheduler:
    """Every request that has not ended is either in `waiting` or in `running`.

    Plans may be made before earlier results are back. Then only the worker has the tokens in flight, and a request's
    `sample_end` in the batch is ahead of its known output tokens.
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
        self._rule = NO_SUSPECT  # of the newest plan
        self._preparations = Preparations(config.max_num_seqs)
        self._reader = ResultReader()
        self._last_result = 0  # step id of the newest result
        self._admitted: deque[tuple[int, Admitted]] = deque()  # with the step that each first runs in

    @property
    def running(self) -> list[Request]:
        """The running requests by rank; the last one is preempted first."""
        return self.batch.running

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> Finished | None:
        """Queues a request and returns None. If its resumed tokens already end it, only returns its Finished event.

        A request with a grammar runs no earlier than `prepared` is called for it, and blocks no other.
        """
        assert request.handle not in self._requests, f"handle {request.handle} is in use"
        for count in range(1, request.num_output_tokens + 1):
            stop = stop_at(request, count)
            if stop is not None:
                return finished(request, stop)
        self._reader.add_stop_ids(request.sampling)
        self._suspects.watch(request)
        self._requests[request.handle] = request
        self._wait(request)
        return None

    def abort(self, handle: int) -> Finished | None:
        """Ends a request, frees its blocks and returns its Finished event; None if no such request is left.

        Its tokens in flight are dropped.
        """
        request = self._requests.get(handle)
        return self._finish(request, Stop("abort")) if request is not None else None

    def prepare(self) -> list[Request]:
        """Returns the requests that the worker is to prepare now. Call it when the worker can, before each plan."""
        return self._preparations.begin(self._last_result < self._builder.step_id, len(self._builder.dropped_grammars))

    def prepared(self, handle: int, error: str = "", *, is_complete: bool = False) -> Finished | None:
        """Lets a request run that the worker has prepared, at the place in the queue of its arrival.

        Ends it instead, and returns its Finished event, if it cannot be prepared (`error` says why), or if its output
        so far completes its grammar. Does nothing for a handle that is not being prepared.
        """
        if not self._preparations.end(handle, has_failed=bool(error)):
            return None
        request = self._requests.get(handle)
        if request is None:  # it has ended meanwhile
            self._forget_preparation(handle)
        elif error:
            return self._finish(request, Stop("error", message=error, param="grammar"))
        elif is_complete:
            request.completed_at = request.num_output_tokens
            return self._finish(request, completion(request))
        else:
            self.waiting.ready(request)
        return None

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache. The running requests keep their blocks."""
        self.kv.reset_prefix_cache(self.running)

    def restart(self, kv: KVCacheManager, builder: PlanBuilder, *, is_death: bool = True) -> list[Finished]:
        """Continues with a new worker after the old one was lost. Every running request waits again, with nothing
        computed. Tokens in flight are lost, and sampled again with the same result. Every grammar is prepared again. A
        death counts against the requests that were being prepared, and as a strike against each that ran, unpaused.

        Returns the Finished events of requests that end here: a suspect that ran, or was prepared, alone when the
        worker died again, and requests that do not fit into the new worker's KV cache.
        """
        rule, self._rule = self._rule, NO_SUSPECT
        if is_death and not self._preparations.explains_death:
            self._suspects.strike(self.running, rule, self.counters.steps)
        requests = [*self.waiting, *self.running]
        for request in list(self.running):
            self.batch.leave(request)
            request.blocks, request.given_back, request.unpublished = [], [], None
        self.waiting.clear()
        self._preparations.restart(is_death=is_death)
        self.kv, self._builder, self._last_result = kv, builder, 0
        self._admitted = deque((0, admitted) for _, admitted in self._admitted)
        for request in requests:
            request.last_step_id = 0
            self._wait(request)
        capacity, guilty_at = kv.capacity_tokens, self._suspects.guilty_at
        errors = [(one, restart_error(one) or rule.restart_error(one, capacity, guilty_at)) for one in self.waiting]
        return [self._finish(request, Stop("error", message=error)) for request, error in errors if error is not None]

    def schedule(self) -> StepPlan | None:
        """Plans the next step: preempts and admits requests, and counts the plan's tokens as computed.

        Returns None when nothing may be computed before the next result or request.
        """
        batch, budget = self.batch, self._config.max_num_batched_tokens
        rule = self._suspects.step_rule(self.running, self.waiting, self._rule)
        preemptions_before = self.counters.preemptions
        if (rule.waits_for_results and self._last_result < self._builder.step_id) or self._preparations.holds_steps:
            return None

        self.kv.give_back(batch)
        # The running catch up, by rank, under one budget. Where blocks run out, the lowest-ranked are preempted.
        num_new = self._split_budget(budget, rule)
        while not self._extend(num_new):
            self._preempt(rule.victim(self.running))
            num_new = self._split_budget(budget, rule)
        rows = np.flatnonzero(num_new)  # requests with their last sample in flight have nothing to compute
        slots, num_new = batch.slots[rows], num_new[rows]
        budget -= int(num_new.sum())

        # The waiting are admitted in order, as long as slots, blocks and budget last. None is admitted in a step that
        # preempted, or the preempted one would take its blocks back at once; nor one that has results in flight.
        admitted: list[Request] = []
        admitted_new: list[int] = []
        known = 0  # tokens of the admitted, cached ones included
        preempted = self.counters.preemptions > preemptions_before
        while not preempted and budget > 0 and known < MOST_KNOWN_TOKENS:
            request = self.waiting.peek(suspects=rule.suspect is not None)
            if request is None or request.last_step_id > self._last_result or not rule.admits(request):
                break
            if num_tokens := self._admit(request, budget):
                admitted.append(request)
                admitted_new.append(num_tokens)
                budget -= num_tokens
                known += request.num_tokens
            elif rule.preempts_to_admit:
                self._preempt(rule.victim(self.running))
            else:
                break

        # The plan is built. From here on its tokens count as computed, because later plans run after it.
        if admitted:
            slots = np.append(slots, np.array([request.slot for request in admitted], dtype=np.int32))
            num_new = np.append(num_new, np.array(admitted_new, dtype=np.int32))
        if not slots.size:
            return None
        plan, self._rule = self._builder.build(batch, slots, num_new, admitted), rule
        self.counters.scheduled_tokens += self._config.max_num_batched_tokens - budget
        self.counters.chunked_rows += len(slots) - int(unpack_i32(plan.sampled).sum())
        self.counters.steps += 1
        self.counters.steps_ahead += plan.step_id > self._last_result + 1
        return plan

    def update(self, result: StepResult) -> StepEvents:
        """Applies a step's result and returns its events. Tokens count only if they begin at their request's next
        output index, so stale tokens have no effect. Each request in the result's `errors` ends.

        Stop conditions are examined only in rows that have a stop id, complete a grammar, or reach max_tokens.
        """
        events = StepEvents()
        self._last_result = result.step_id
        while self._admitted and self._admitted[0][0] <= result.step_id:
            events.admitted.append(self._admitted.popleft()[1])
        ids, rows = self._reader.rows(result)
        requests = self._requests
        events.prompt_logprobs = [one for one in result.prompt_logprobs if take_prompt_logprobs(requests, one)]
        for handle, start, count, end, num_ends, logprobs in rows:
            request = requests.get(handle)
            if request is None or start != len(request.token_ids) - request.num_prompt_tokens:
                continue
            tokens = NewTokens(handle, start, ids[end - count : end], logprobs)
            if request.strikes and start + count >= request.trial_end:
                self._suspects.clear(request)
            if num_ends or start + count >= request.sampling.max_tokens:
                if handle in result.completed:
                    request.completed_at = start + count
                self._append(request, tokens, events)
            else:
                request.token_ids += tokens.token_ids
                events.new_tokens.append(tokens)
        self.counters.output_tokens += sum([len(tokens.token_ids) for tokens in events.new_tokens])
        causes = result.error_causes or [""] * len(result.errors)
        for (handle, message), cause in zip(result.errors, causes, strict=True):
            request = requests.get(handle)
            if request is not None:
                param = param_at_fault(cause, request.sampling, has_grammar=bool(request.grammar))
                events.finished.append(self._finish(request, Stop("error", message=message, param=param)))
        return events

    def result_rows(self, plan: StepPlan) -> ResultRows:
        """Returns what the result of the newest `plan` must have. Call it before the batch changes again."""
        sampled = unpack_i32(plan.sampled) != 0
        slots = unpack_i32(plan.slots)[sampled]
        return ResultRows(
            handles=pack_i32(self.batch.handles[slots]),
            start_indices=pack_i32(unpack_i32(plan.output_indices)[sampled]),
            logprob_widths=pack_i32(self.batch.logprob_widths[slots]),
            scored=self.batch.scored_rows(plan),
        )

    def stats(self) -> SchedulerStats:
        return scheduler_stats(self.running, self.waiting, self.kv.pool, self.counters)

    @property
    def _cap(self) -> int:
        """The most tokens of one request in the next step; 0: no limit, as for a request that is alone."""
        return self._config.long_prefill_token_threshold if len(self._requests) > 1 else 0

    def _split_budget(self, budget: int, rule: StepRule) -> Ints:
        """Returns how many tokens each running request computes next, [running] int32.

        The sum is at most `budget`; the highest-ranked requests are served first. Requests that `rule` pauses get 0.
        """
        num_new = rule.restrict(self.batch.num_new_tokens(self._cap), self.batch)
        if num_new.sum() <= budget:
            return num_new
        before = np.cumsum(num_new) - num_new
        shares: Ints = np.clip(budget - before, 0, num_new).astype(np.int32)
        return shares

    def _extend(self, num_new: Ints) -> bool:
        """Allocates the blocks for `num_new` tokens of each running request, [running] int32. Publishes prompt blocks.

        Returns False when too few are free; requests of a higher rank then keep the blocks that they got.
        """
        batch, block_size = self.batch, self.kv.block_size
        ends = batch.num_computed[batch.slots] + num_new
        rows = np.flatnonzero(ends > batch.num_blocks[batch.slots] * block_size)
        for row, end in zip(rows.tolist(), ends[rows].tolist(), strict=True):
            request = self.running[row]
            if not self.kv.extend(request, end):
                return False
            batch.num_blocks[request.slot] = len(request.blocks[0])
        in_prompt = ends - num_new < batch.num_prompt[batch.slots]  # blocks of answers are published by _leave_batch
        for row in np.flatnonzero(in_prompt).tolist():
            self.kv.publish(self.running[row], int(ends[row]))
        return True

    def _admit(self, request: Request, budget: int) -> int:
        """Moves the first waiting request into the batch. Returns how many tokens, at most `budget`, it computes in the
        next step.

        Returns 0, and changes nothing, when no slot or too few blocks are free.
        """
        if self.batch.is_full:
            return 0
        cached = self.kv.find_cached(request)
        num_computed = len(cached[0]) * self.kv.block_size
        num_tokens = min(request.num_tokens - num_computed, self._cap or budget, budget)
        num_tokens = self.batch.first_tokens(request, num_tokens)
        reserved = self.kv.num_blocks_to_allocate(self.batch)
        if not self.kv.allocate(request, cached, num_computed + num_tokens, reserved):
            return 0
        self.kv.publish(request, num_computed + num_tokens)
        self.batch.join(self.waiting.pop(request), num_computed)
        if request.num_cached_tokens is None:  # not counted again after a preemption
            self.counters.prefix_cache_queries += request.num_tokens if self.kv.prefix_caching else 0
            self.counters.prefix_cache_hits += num_computed
            request.num_cached_tokens = min(num_computed, request.num_prompt_tokens)
            self._admitted.append((self._builder.step_id + 1, Admitted(request.handle, request.num_cached_tokens)))
        return num_tokens

    def _preempt(self, request: Request) -> None:
        """Moves a running request back to the queue, with nothing computed. Its full blocks can still be found."""
        self.counters.preemptions += 1
        self._leave_batch(request, publish=True)
        request.num_preemptions += 1
        request.last_step_id = self._builder.step_id
        self.waiting.push(request)

    def _append(self, request: Request, tokens: NewTokens, events: StepEvents) -> None:
        """Appends tokens up to one that ends the request, if any, and then ends it. Adds the events to `events`."""
        stop = None
        kept = 0
        while stop is None and kept < len(tokens.token_ids):
            request.token_ids.append(tokens.token_ids[kept])
            kept += 1
            stop = stop_at(request, tokens.start_index + kept)
        events.new_tokens.append(tokens.first(kept))
        if stop is not None:
            events.finished.append(self._finish(request, stop))

    def _finish(self, request: Request, stop: Stop) -> Finished:
        """Removes a waiting or running request, and frees its slot and blocks. Returns its Finished event."""
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._leave_batch(request, publish=stop.reason != "error")
        del self._requests[request.handle]
        self._suspects.forget(request)
        self._forget_preparation(request.handle)
        return finished(request, stop)

    def _wait(self, request: Request) -> None:
        """Queues a request for which the worker has prepared nothing."""
        if request.grammar:
            self._preparations.wait(request, self.waiting.place(request))
        self.waiting.push(request)

    def _forget_preparation(self, handle: int) -> None:
        """Makes the next plan drop what the worker holds for a request that has ended, if anything."""
        if self._preparations.forget(handle):
            self._builder.dropped_grammars.append(handle)

    def _leave_batch(self, request: Request, *, publish: bool) -> None:
        """Frees the request's slot and blocks. `publish`: other requests may find its full blocks."""
        assert request.slot is not None
        if publish:
            self.kv.publish(request, int(self.batch.num_computed[request.slot]))
        self._builder.released_slots.append(request.slot)
        self.batch.leave(request)
        self.kv.free(request)
