"""The request in each slot, and how it draws, as columns: a step of hundreds of rows needs no Python loop.

The engine assigns slots.
"""

import numpy as np
import numpy.typing as npt

from engine_core.step_plan import BadMessage, NewRequest
from kernels.interface import DRAW
from services.worker.sampler import draw_of

Slots = npt.NDArray[np.integer]


class SlotTable:
    """One entry per slot in each column; entries of an empty slot are undefined."""

    def __init__(self, count: int) -> None:
        self.handles = np.zeros(count, dtype=np.int32)
        self.num_prompt_tokens = np.zeros(count, dtype=np.int64)
        self.draws = np.zeros(count, dtype=DRAW)  # each step sets "index" in its copy
        self._taken = np.zeros(count, dtype=bool)

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, request: NewRequest, num_prompt_tokens: int) -> None:
        """Fills the request's slot. Raises BadMessage if the slot is taken."""
        slot = request.slot
        if self._taken[slot]:
            raise BadMessage(f"slot {slot} is taken")
        self._taken[slot] = True
        self.handles[slot] = request.handle
        self.num_prompt_tokens[slot] = num_prompt_tokens
        self.draws[slot] = draw_of(request.sampling, request.seed, request.choice, 0)

    def release(self, slots: list[int]) -> None:
        self._taken[slots] = False

    def release_all(self) -> None:
        self._taken[:] = False

    def check(self, slots: Slots) -> None:
        """Raises BadMessage if one of the slots is empty."""
        if not self._taken[slots].all():
            raise BadMessage(f"slot {slots[~self._taken[slots]][0]} is empty")
