"""Decides what each step computes. There is no prefill and no decode: every request has known tokens and computed
ones, and the computed catch up with the known under one token budget per step. Chunked prefill, prefix cache hits,
preemption and resumed requests all follow from that one rule.

Pure: requests in, plans out, results in, events out. Knows no text, no tensors, no sockets and no clock.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from engine_core.events import Admitted, Finished, Logprobs, NewTokens, SchedulerStats, StepEvents
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder, Row
from engine_core.request import Request, Stop, stop_at
from engine_core.step_plan import StepPlan, StepResult, unpack_i32


@dataclass(slots=True)
class Counters:
    steps: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    chunked_rows: int = 0
    scheduled_tokens: int = 0


class Scheduler:
    """First come, first served. A request is in exactly one of `waiting`, `running`, or nowhere once it ended."""

    def __init__(
        self, kv: KVCacheManager, builder: PlanBuilder, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) is below max_num_seqs ({max_num_seqs}):"
                " some running request would never get its turn"
            )
        self.kv = kv
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counters = Counters()
        self._builder = builder
        self._requests: dict[int, Request] = {}
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._max_num_batched_tokens = max_num_batched_tokens
        self._pending = StepEvents()  # what schedule() and abort() have to tell with the next update

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
        self._requests[request.handle] = request
        self.waiting.append(request)
        return None

    def abort(self, handle: int) -> Finished | None:
        """Ends a request and frees its blocks; None if it has ended already. Results still in flight are dropped."""
        request = self._requests.get(handle)
        return self._finish(request, Stop("abort")) if request is not None else None

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to compute."""
        rows: list[Row] = []
        admitted: list[Request] = []
        budget = self._max_num_batched_tokens
        preemptions_before = self.counters.preemptions

        # The running catch up, oldest first. Where blocks run out, the youngest gives its own back.
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_new = min(request.num_tokens - request.num_computed_tokens, budget)
            num_blocks = len(request.blocks[0])
            if not self.kv.extend(request, num_new):
                self._preempt(self.running[-1])
                continue
            rows.append(Row(request, num_new, num_blocks))
            budget -= num_new
            index += 1

        # The waiting are admitted in order, as long as slots, blocks and budget last: none right after a preemption,
        # or the victim would take its blocks back at once.
        preempted = self.counters.preemptions > preemptions_before
        while self.waiting and not preempted and self._free_slots and budget > 0:
            request = self.waiting[0]
            cached = self.kv.find_cached(request)
            num_new = min(request.num_tokens - len(cached[0]) * self.kv.block_size, budget)
            if not self.kv.admit(request, cached, num_new):
                break
            self._admit(self.waiting.popleft())
            admitted.append(request)
            rows.append(Row(request, num_new, 0))
            budget -= num_new

        # The plan is built; from here on its tokens count as computed, for later plans run after it.
        if not rows:
            return None
        plan = self._builder.build(rows, admitted)
        for row in rows:
            self.counters.chunked_rows += not row.samples
            self.counters.scheduled_tokens += row.num_new_tokens
            row.request.num_computed_tokens += row.num_new_tokens
        self.counters.steps += 1
        return plan

    def update(self, result: StepResult) -> StepEvents:
        """Takes a step's result. Ids count only at a request's next index: whatever is stale falls out by that rule."""
        events, self._pending = self._pending, StepEvents()
        rows = zip(
            unpack_i32(result.handles).tolist(),
            unpack_i32(result.start_indices).tolist(),
            unpack_i32(result.counts).tolist(),
            unpack_i32(result.logprob_widths).tolist(),
            strict=True,
        )
        token_ids = unpack_i32(result.token_ids).tolist()
        logprob_ids = unpack_i32(result.logprob_token_ids).tolist()
        logprobs = np.frombuffer(result.logprobs, dtype="<f4").tolist()
        token_at = logprob_at = 0
        for handle, start, count, width in rows:
            ids = token_ids[token_at : token_at + count]
            span = slice(logprob_at, logprob_at + count * width)
            token_at, logprob_at = token_at + count, span.stop
            request = self._requests.get(handle)
            if request is not None and start == request.num_output_tokens:
                found = Logprobs(width, logprob_ids[span], logprobs[span]) if width else None
                self._append(request, ids, found, events)
        for handle, message in result.errors:
            if handle in self._requests:
                events.finished.append(self._finish(self._requests[handle], Stop("error", message=message)))
        return events

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            waiting_tokens=sum(request.num_tokens for request in self.waiting),
            num_free_blocks=self.kv.pool.num_free_blocks,
            num_blocks=self.kv.pool.num_blocks,
            num_steps=self.counters.steps,
            num_preemptions=self.counters.preemptions,
            prefix_cache_queries=self.counters.prefix_cache_queries,
            prefix_cache_hits=self.counters.prefix_cache_hits,
            num_chunked_rows=self.counters.chunked_rows,
            num_scheduled_tokens=self.counters.scheduled_tokens,
        )

    def _admit(self, request: Request) -> None:
        request.slot = self._free_slots.pop()
        self.running.append(request)
        if request.num_cached_tokens is None:  # not for one that comes back from a preemption: it counts once
            self.counters.prefix_cache_queries += request.num_tokens
            self.counters.prefix_cache_hits += request.num_computed_tokens
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            self._pending.admitted.append(Admitted(request.handle, request.num_cached_tokens))

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue, with nothing computed; its full blocks may still be found by their hash."""
        self.counters.preemptions += 1
        self._leave_batch(request)
        request.num_preemptions += 1
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)

    def _append(self, request: Request, ids: list[int], logprobs: Logprobs | None, events: StepEvents) -> None:
        start = request.num_output_tokens
        stop = None
        for token_id in ids:
            request.token_ids.append(token_id)
            stop = stop_at(request, request.num_output_tokens)
            if stop is not None:
                break
        kept = request.num_output_tokens - start
        if logprobs is not None and kept < len(ids):
            end = kept * logprobs.width
            logprobs = Logprobs(logprobs.width, logprobs.token_ids[:end], logprobs.values[:end])
        events.new_tokens.append(NewTokens(request.handle, start, ids[:kept], logprobs))
        if stop is not None:
            events.finished.append(self._finish(request, stop))

    def _finish(self, request: Request, stop: Stop) -> Finished:
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._leave_batch(request)
        del self._requests[request.handle]
        return self._terminal(request, stop)

    def _leave_batch(self, request: Request) -> None:
        assert request.slot is not None
        self.running.remove(request)
        self.kv.free(request)
        self._builder.released_slots.append(request.slot)
        self._free_slots.append(request.slot)
        request.slot = None

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
