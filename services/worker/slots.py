"""Who is in which slot, and what each request asks of the sampler: in columns, so that a step of hundreds of rows is
looked up and not walked. Slots are the engine's to give."""

import numpy as np
import numpy.typing as npt

from engine_core.step_plan import BadMessage, NewRequest, SamplingParams
from kernels.interface import DRAW
from services.worker.sampler import NO_LOGPROBS, draw_of, has_penalty

Slots = npt.NDArray[np.integer]


class SlotTable:
    """One entry per slot in each column; those of an empty slot have no meaning."""

    def __init__(self, count: int) -> None:
        self.handles = np.zeros(count, dtype=np.int32)
        self.num_prompt_tokens = np.zeros(count, dtype=np.int64)
        self.draws = np.zeros(count, dtype=DRAW)  # "index" is the step's to say
        self.num_top = np.zeros(count, dtype=np.int32)  # logprobs: of so many tokens beside the sampled one
        self._sampling: list[SamplingParams | None] = [None] * count
        self._penalised = np.zeros(count, dtype=bool)
        self._min_tokens = np.zeros(count, dtype=np.int64)
        self._taken = np.zeros(count, dtype=bool)

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, request: NewRequest, num_prompt_tokens: int) -> None:
        """Raises BadMessage for a slot that is taken."""
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
        """Raises BadMessage when one of them is empty."""
        if not self._taken[slots].all():
            raise BadMessage(f"slot {slots[~self._taken[slots]][0]} is empty")

    def sampling(self, slot: int) -> SamplingParams:
        sampling = self._sampling[slot]
        assert sampling is not None
        return sampling

    def adjusted(self, slots: Slots, output_indices: Slots) -> list[int]:
        """Which of the rows in these slots have their logits changed before the draw of the token of that index."""
        return (self._penalised[slots] | (output_indices < self._min_tokens[slots])).nonzero()[0].tolist()
