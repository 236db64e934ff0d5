"""How long a step may take before its worker counts as hung, learned from the steps before it.

No model of the hardware: time grows with tokens and with attention, and never faster than either. So a step takes at
most as many times longer than one that was seen as it has more of anything. Seconds are passed in; there is no clock.
"""

from dataclasses import dataclass

import numpy as np

from engine_core.step_plan import StepPlan, unpack_i32

FACTOR = 10  # a step may take so many times what it should
START_STEPS = 10  # of a new worker: it compiles, captures and pages in, so these teach nothing
START_FACTOR = 5  # and may take so many times the floor
DECAY = 0.99  # what a slow step taught fades with every later one of its size


@dataclass(frozen=True, slots=True)
class Work:
    tokens: int
    attention: int  # pairs of a new token and a token that it looks at


@dataclass(slots=True)
class _Seen:
    work: Work
    seconds: float


def work_of(plan: StepPlan) -> Work:
    num_new = unpack_i32(plan.num_new_tokens)
    ends = unpack_i32(plan.num_computed_tokens) + num_new
    return Work(int(num_new.sum()), int(num_new.astype(np.int64) @ ends))


class StepDeadlines:
    def __init__(self, floor: float) -> None:
        """`floor` in seconds: no step gets less."""
        self._floor = floor
        self._num_steps = 0  # of this worker
        self._seen: dict[int, _Seen] = {}  # by size: a slow one with tokens of so many binary digits

    def new_worker(self) -> None:
        self._num_steps = 0

    def deadline(self, work: Work) -> float:
        """Seconds that a step with so much work may take."""
        floor = self._floor * (START_FACTOR if self._num_steps < START_STEPS else 1)
        expected = min((_scaled(seen, work) for seen in self._seen.values()), default=0.0)
        return max(floor, FACTOR * expected)

    def measured(self, work: Work, seconds: float) -> None:
        """A step is done."""
        self._num_steps += 1
        if self._num_steps <= START_STEPS:
            return
        size = work.tokens.bit_length()
        seen = self._seen.get(size)
        if seen is None or seconds >= seen.seconds:
            self._seen[size] = _Seen(work, seconds)
        else:
            seen.seconds *= DECAY


def _scaled(seen: _Seen, work: Work) -> float:
    return seen.seconds * max(1.0, work.tokens / seen.work.tokens, work.attention / seen.work.attention)
