"""The running requests as columns, one place per slot: what changes at every step changes for all of them at once.

The scheduler decides; this only counts. A request that waits has nothing here: nothing of it is computed, and all that
it has is known.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine_core.request import Request

Ints = npt.NDArray[np.int32]
Rank = tuple[int, int]  # priority, arrival


class Batch:
    """Columns are int32 [max_num_seqs], by slot; only those of running requests mean anything."""

    def __init__(self, max_num_seqs: int, rank: Callable[[Request], Rank]) -> None:
        self.handles = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_prompt = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_computed = np.zeros(max_num_seqs, dtype=np.int32)  # once the plans that were sent have run
        self.sample_end = np.zeros(max_num_seqs, dtype=np.int32)  # output tokens known or sampled, ids here or not yet
        self.max_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.logprob_widths = np.zeros(max_num_seqs, dtype=np.int32)  # entries per token; 0: the request wants none
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int32)  # that the request has
        self.num_sent_blocks = np.zeros(max_num_seqs, dtype=np.int32)  # that the worker knows of
        self.slots = np.zeros(0, dtype=np.int32)  # of the running, by rank
        self.running: list[Request] = []  # by rank: the last of them gives way first
        self._by_slot: list[Request | None] = [None] * max_num_seqs
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._rank = rank

    @property
    def is_full(self) -> bool:
        return not self.free_slots

    def at(self, slot: int) -> Request:
        request = self._by_slot[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def join(self, request: Request, num_computed_tokens: int) -> None:
        """Gives the request a slot."""
        slot = request.slot = self.free_slots.pop()
        self._by_slot[slot] = request
        self.handles[slot] = request.handle
        self.num_prompt[slot] = request.num_prompt_tokens
        self.num_computed[slot] = num_computed_tokens
        self.sample_end[slot] = request.num_output_tokens
        self.max_tokens[slot] = request.sampling.max_tokens
        self.logprob_widths[slot] = 0 if request.sampling.logprobs is None else 1 + request.sampling.logprobs
        self.num_blocks[slot] = self.num_sent_blocks[slot] = len(request.blocks[0])
        insort(self.running, request, key=self._rank)
        self.slots = np.insert(self.slots, self._place(request), slot)

    def leave(self, request: Request) -> None:
        """Takes the slot away."""
        assert request.slot is not None
        place = self._place(request)
        assert self.running.pop(place) is request
        self.slots = np.delete(self.slots, place)
        self._by_slot[request.slot] = None
        self.free_slots.append(request.slot)
        request.slot = None

    def wanted(self, cap: int) -> Ints:
        """Tokens that each of the running would compute next, [running]: all that its next sample needs, `cap` at most.
        The last token that max_tokens allows is never computed, for nothing is sampled after it."""
        slots = self.slots
        wanted: Ints = self._needed(slots) - self.num_computed[slots]
        return np.minimum(wanted, cap) if cap else wanted

    def num_owed_blocks(self, block_size: int) -> int:
        """Blocks that the running need for their known tokens, and do not have yet."""
        wanted = -(-self._needed(self.slots) // block_size)
        return int(np.maximum(wanted - self.num_blocks[self.slots], 0).sum())

    def advance(self, slots: Ints, num_new_tokens: Ints) -> npt.NDArray[np.bool_]:
        """A plan computes so many tokens of these requests; says which of them sample."""
        self.num_computed[slots] += num_new_tokens
        samples: npt.NDArray[np.bool_] = self.num_computed[slots] == self._needed(slots)
        self.sample_end[slots[samples]] += 1
        return samples

    def _needed(self, slots: Ints) -> Ints:
        needed: Ints = self.num_prompt[slots] + np.minimum(self.sample_end[slots], self.max_tokens[slots] - 1)
        return needed

    def _place(self, request: Request) -> int:
        return bisect_left(self.running, self._rank(request), key=self._rank)
