"""Keeps the counts of the running requests as numpy columns, one row per slot, so that a step updates all of them at
once.

The scheduler decides, the batch counts. A waiting request has no row: none of its tokens is computed.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine_core.request import Request

Ints = npt.NDArray[np.int32]
Rank = tuple[int, int]  # priority, arrival; the smallest ranks first


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
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int32)  # blocks of the request, per KV group
        self.num_sent_blocks = np.zeros(max_num_seqs, dtype=np.int32)  # of these, blocks already in a plan
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
        self.num_blocks[slot] = self.num_sent_blocks[slot] = len(request.blocks[0])
        insort(self.running, request, key=self._rank)
        self.slots = np.insert(self.slots, self._index(request), slot)

    def leave(self, request: Request) -> None:
        """Removes a running request and frees its slot, but not its blocks."""
        assert request.slot is not None
        index = self._index(request)
        assert self.running.pop(index) is request
        self.slots = np.delete(self.slots, index)
        self._by_slot[request.slot] = None
        self.free_slots.append(request.slot)
        request.slot = None

    def num_new_tokens(self, cap: int) -> Ints:
        """Returns how many tokens each running request would compute next, [running] int32: all that its next sample
        needs, but at most `cap`; 0 means no cap.

        The last token that max_tokens allows is never computed: nothing is sampled after it.
        """
        slots = self.slots
        num_new: Ints = self._num_needed(slots) - self.num_computed[slots]
        return np.minimum(num_new, cap) if cap else num_new

    def num_blocks_to_allocate(self, block_size: int) -> int:
        """Returns how many more blocks, per KV group, the running requests need in total for all of their tokens,
        known or in flight."""
        needed = -(-self._num_needed(self.slots) // block_size)
        return int(np.maximum(needed - self.num_blocks[self.slots], 0).sum())

    def advance(self, slots: Ints, num_new_tokens: Ints) -> npt.NDArray[np.bool_]:
        """Counts `num_new_tokens` more tokens of each of `slots` as computed; both are [rows] int32.

        Returns which rows sample a token, [rows] bool: those with no known token left to compute. Counts that token as
        an output token in flight.
        """
        self.num_computed[slots] += num_new_tokens
        samples: npt.NDArray[np.bool_] = self.num_computed[slots] == self._num_needed(slots)
        self.sample_end[slots[samples]] += 1
        return samples

    def _num_needed(self, slots: Ints) -> Ints:
        """Returns how many computed tokens the next sample of each slot needs, [rows] int32."""
        needed: Ints = self.num_prompt[slots] + np.minimum(self.sample_end[slots], self.max_tokens[slots] - 1)
        return needed

    def _index(self, request: Request) -> int:
        """Returns the request's index in `running`."""
        return bisect_left(self.running, self._rank(request), key=self._rank)
