"""Keeps the counts of the running requests as numpy columns, one row per slot, so that a step updates all of them at
once.

The scheduler decides, the batch counts. A waiting request has no row: none of its tokens is computed.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_core.request import Request
from engine_core.step_plan import MAX_SCORED_TOKENS, SCORED_WIDTH, SamplingParams, StepPlan, unpack_i32

Ints = npt.NDArray[np.int32]
Rank = tuple[int, int, int]  # priority, arrival, handle; the smallest ranks first


class ScoredRow(NamedTuple):
    """Consecutive prompt tokens of one request, with `width` logprobs each."""

    handle: int
    start_index: int
    num_tokens: int
    width: int


class Batch:
    """The running requests by rank, and their counts as columns, int32 [max_num_seqs], indexed by slot.

    Rows of free slots hold old values. `rank` returns a request's sort key; the smallest comes first.
    """

    def __init__(self, max_num_seqs: int, rank: Callable[[Request], Rank]) -> None:
        self.handles = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_prompt = np.zeros(max_num_seqs, dtype=np.int32)  # prompt tokens
        self.num_computed = np.zeros(max_num_seqs, dtype=np.int32)  # tokens with KV, once all plans made so far ran
        self.sample_end = np.zeros(max_num_seqs, dtype=np.int32)  # output tokens, including those still in flight
        self.max_tokens = np.zeros(max_num_seqs, dtype=np.int32)  # limit of the output, in tokens
        self.logprob_widths = np.zeros(max_num_seqs, dtype=np.int32)  # logprobs per output token; 0: none requested
        # The logprobs of a prompt's tokens come from these computed tokens, from begin to end; 0, 0: none.
        self.score_begin = np.zeros(max_num_seqs, dtype=np.int32)
        self.score_end = np.zeros(max_num_seqs, dtype=np.int32)
        self.score_cost = np.ones(max_num_seqs, dtype=np.int32)  # of one of these tokens, of MAX_SCORED_TOKENS in all
        self.num_scoring = 0  # running requests with such tokens
        self._score_room = MAX_SCORED_TOKENS  # what the step that is being planned has left of them
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int32)  # blocks per KV group, with those given back
        self.num_sent_blocks = np.zeros(max_num_seqs, dtype=np.int32)  # of these, blocks already in a plan
        self.give_back_at = np.zeros(max_num_seqs, dtype=np.int32)  # computed tokens at which it next gives blocks back
        self.slots = np.zeros(0, dtype=np.int32)  # [running], slots of `running` in the same order
        self.running: list[Request] = []  # by rank: the last one is preempted first
        self._by_slot: list[Request | None] = [None] * max_num_seqs
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._rank = rank

    @property
    def is_full(self) -> bool:
        return not self.free_slots

    def at(self, slot: int) -> Request:
        """Returns the request in a slot that is in use."""
        request = self._by_slot[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def join(self, request: Request, num_computed_tokens: int) -> None:
        """Adds a request to `running`: gives it a free slot and fills in its row. Its blocks must be allocated.

        `num_computed_tokens`: how many of its first tokens already have their KV in these blocks.
        """
        slot = request.slot = self.free_slots.pop()
        self._by_slot[slot] = request
        self.handles[slot] = request.handle
        self.num_prompt[slot] = request.num_prompt_tokens
        self.num_computed[slot] = num_computed_tokens
        self.sample_end[slot] = request.num_output_tokens
        self.max_tokens[slot] = request.sampling.max_tokens
        self.logprob_widths[slot] = request.sampling.logprob_width
        needs = request.needs_prompt_logprobs
        self.score_begin[slot] = request.next_prompt_logprob - 1 if needs else 0
        self.score_end[slot] = request.num_prompt_tokens - 1 if needs else 0
        self.score_cost[slot] = _score_cost(request.sampling)
        self.num_scoring += needs
        self.num_blocks[slot] = self.num_sent_blocks[slot] = len(request.blocks[0])
        self.give_back_at[slot] = 0
        insort(self.running, request, key=self._rank)
        self.slots = np.insert(self.slots, self._index(request), slot)

    def leave(self, request: Request) -> None:
        """Removes a running request and frees its slot, but not its blocks."""
        assert request.slot is not None
        index = self._index(request)
        assert self.running.pop(index) is request
        self.slots = np.delete(self.slots, index)
        self._by_slot[request.slot] = None
        self.num_scoring -= int(self.score_end[request.slot] > 0)
        self.free_slots.append(request.slot)
        request.slot = None

    def num_new_tokens(self, cap: int) -> Ints:
        """Returns how many tokens each running request would compute next, [running] int32: all that its next sample
        needs, but at most `cap`; 0 means no cap.

        The last token that max_tokens allows is never computed: nothing is sampled after it.
        """
        slots = self.slots
        num_new: Ints = self.num_needed(slots) - self.num_computed[slots]
        self._score_room = MAX_SCORED_TOKENS
        if self.num_scoring:
            num_new = self._limit_scored(num_new)
        return np.minimum(num_new, cap) if cap else num_new

    def _limit_scored(self, num_new: Ints) -> Ints:
        """Returns `num_new`, [running] int32, with fewer tokens of the requests that still score their prompts: their
        head and their results would keep the others waiting. Each gets an equal share of MAX_SCORED_TOKENS, at least
        one token."""
        slots = self.slots
        scores = (self.num_computed[slots] < self.score_end[slots]) & (num_new > 0)
        count, cost = int(scores.sum()), self.score_cost[slots]
        if count == 0:
            return num_new
        shares = np.maximum(1, MAX_SCORED_TOKENS // (count * cost))
        limited: Ints = np.where(scores, np.minimum(num_new, shares), num_new).astype(np.int32)
        self._score_room -= int((limited * cost)[scores].sum())
        return limited

    def first_tokens(self, request: Request, num_tokens: int) -> int:
        """Returns how many of `num_tokens` a request may compute in the step that admits it, at least 1."""
        if not request.needs_prompt_logprobs:
            return num_tokens
        cost = _score_cost(request.sampling)
        num_tokens = max(1, min(num_tokens, self._score_room // cost))
        self._score_room -= num_tokens * cost
        return num_tokens

    def scored_rows(self, plan: StepPlan) -> list[ScoredRow]:
        """Returns the prompt tokens whose logprobs the newest `plan` computes, a row per request."""
        if not self.num_scoring:
            return []
        slots, num_computed = unpack_i32(plan.slots), unpack_i32(plan.num_computed_tokens)
        num_new = unpack_i32(plan.num_new_tokens)
        begin = np.maximum(num_computed, self.score_begin[slots])
        counts = np.minimum(num_computed + num_new, self.score_end[slots]) - begin
        rows = np.flatnonzero(counts > 0)
        widths = [self.at(slot).sampling.prompt_logprob_width for slot in slots[rows].tolist()]
        columns = (self.handles[slots[rows]], begin[rows] + 1, counts[rows])
        return [ScoredRow(*row) for row in zip(*(column.tolist() for column in columns), widths, strict=True)]

    def advance(self, slots: Ints, num_new_tokens: Ints) -> npt.NDArray[np.bool_]:
        """Counts `num_new_tokens` more tokens of each of `slots` as computed; both are [rows] int32.

        Returns which rows sample a token, [rows] bool: those with no known token left to compute. Counts that token as
        an output token in flight.
        """
        self.num_computed[slots] += num_new_tokens
        samples: npt.NDArray[np.bool_] = self.num_computed[slots] == self.num_needed(slots)
        self.sample_end[slots[samples]] += 1
        return samples

    def num_needed(self, slots: Ints) -> Ints:
        """Returns how many computed tokens the next sample of each slot needs, [rows] int32."""
        needed: Ints = self.num_prompt[slots] + np.minimum(self.sample_end[slots], self.max_tokens[slots] - 1)
        return needed

    def _index(self, request: Request) -> int:
        """Returns the request's index in `running`."""
        return bisect_left(self.running, self._rank(request), key=self._rank)


def _score_cost(sampling: SamplingParams) -> int:
    """Returns for how many prompt tokens with SCORED_WIDTH logprobs one of a request counts."""
    return max(1, -(-sampling.prompt_logprob_width // SCORED_WIDTH))
