"""The request in each slot, and its sampling parameters, as columns: a step of hundreds of rows needs no Python loop.

The engine assigns slots.
"""

import numpy as np
import numpy.typing as npt

from engine_core.step_plan import BadMessage, NewRequest, SamplingParams
from kernels.interface import DRAW
from services.worker.sampler import NO_LOGPROBS, draw_of, has_penalty

Slots = npt.NDArray[np.integer]


class SlotTable:
    """One entry per slot in each column; entries of an empty slot are undefined."""

    def __init__(self, count: int) -> None:
        self.handles = np.zeros(count, dtype=np.int32)
        self.num_prompt_tokens = np.zeros(count, dtype=np.int64)
        self.draws = np.zeros(count, dtype=DRAW)  # each step sets "index" in its copy
        self.num_top = np.zeros(count, dtype=np.int32)  # as in SampleRows
        self._sampling: list[SamplingParams | None] = [None] * count
        self._penalised = np.zeros(count, dtype=bool)
        self._min_tokens = np.zeros(count, dtype=np.int64)
        self._taken = np.zeros(count, dtype=bool)

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, request: NewRequest, num_prompt_tokens: int) -> None:
        """Fills the request's slot. Raises BadMessage if the slot is taken."""
        slot, sampling = request.slot, request.sampling
        if self._taken[slot]:
            raise BadMessage(f"slot {slot} is taken")
        self._taken[slot] = True
        self.handles[slot] = request.handle
        self.num_prompt_tokens[slot] = num_prompt_tokens
        self.draws[slot] = draw_of(sampling, request.seed, request.choice, 0)
        self.num_top[slot] = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        self._sampling[slot] = sampling
        self._penalised[slot] = has_penalty(sampling)
        self._min_tokens[slot] = sampling.min_tokens

    def release(self, slots: list[int]) -> None:
        self._taken[slots] = False

    def release_all(self) -> None:
        self._taken[:] = False

    def check(self, slots: Slots) -> None:
        """Raises BadMessage if one of the slots is empty."""
        if not self._taken[slots].all():
            raise BadMessage(f"slot {slots[~self._taken[slots]][0]} is empty")

    def sampling(self, slot: int) -> SamplingParams:
        sampling = self._sampling[slot]
        assert sampling is not None
        return sampling

    def adjusted(self, slots: Slots, output_indices: Slots) -> list[int]:
        """Returns the indices into `slots` of rows with penalties, or with an output index below min_tokens."""
        return (self._penalised[slots] | (output_indices < self._min_tokens[slots])).nonzero()[0].tolist()
