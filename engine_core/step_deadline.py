"""Sets how long a step may take before its worker counts as hung, from the times of earlier steps.

It has no model of the hardware. A step with at most k times the tokens and k times the attention pairs of an earlier
one is expected to take at most k times as long. Seconds are passed in; there is no clock.
"""

from dataclasses import dataclass

import numpy as np

from engine_core.step_plan import StepPlan, unpack_i32

FACTOR = 10  # deadline of a step, in multiples of its expected time
START_STEPS = 10  # first steps of a worker: it compiles and captures graphs, so their times are ignored
START_FACTOR = 5  # their deadline is at least this many times the minimum
DECAY = 0.99  # each faster step of a size lowers the time kept for that size by this factor


@dataclass(frozen=True, slots=True)
class Work:
    """How much one step computes."""

    tokens: int  # new tokens
    attention: int  # sum over the rows of new tokens times all tokens up to the last new one


@dataclass(slots=True)
class _Slowest:
    """The slowest step of one size, in seconds; each faster step of that size lowers `seconds` by DECAY."""

    work: Work
    seconds: float


def work_of(plan: StepPlan) -> Work:
    """Returns how much the plan's step computes."""
    num_new = unpack_i32(plan.num_new_tokens)
    ends = unpack_i32(plan.num_computed_tokens) + num_new
    return Work(int(num_new.sum()), int(num_new.astype(np.int64) @ ends))


class StepDeadlines:
    def __init__(self, minimum: float) -> None:
        """`minimum` is the shortest deadline of any step, in seconds."""
        self._minimum = minimum
        self._num_steps = 0  # of this worker
        self._slowest: dict[int, _Slowest] = {}  # by size: the bit length of the number of tokens

    def new_worker(self) -> None:
        """Counts START_STEPS from the beginning again. Times of earlier workers are kept."""
        self._num_steps = 0

    def deadline(self, work: Work) -> float:
        """Returns how many seconds a step may take: FACTOR times its expected time, at least the minimum.

        For the first START_STEPS of a worker, the minimum is START_FACTOR times as high.
        """
        minimum = self._minimum * (START_FACTOR if self._num_steps < START_STEPS else 1)
        expected = min((_scaled(slow, work) for slow in self._slowest.values()), default=0.0)
        return max(minimum, FACTOR * expected)

    def measured(self, work: Work, seconds: float) -> None:
        """Records that a step with this work took `seconds`. The first START_STEPS of a worker are only counted."""
        self._num_steps += 1
        if self._num_steps <= START_STEPS:
            return
        size = work.tokens.bit_length()
        slow = self._slowest.get(size)
        if slow is None or seconds >= slow.seconds:
            self._slowest[size] = _Slowest(work, seconds)
        else:
            slow.seconds *= DECAY


def _scaled(slow: _Slowest, work: Work) -> float:
    """Returns an upper bound of the seconds that `work` takes on the hardware that ran `slow`."""
    return slow.seconds * max(1.0, work.tokens / slow.work.tokens, work.attention / slow.work.attention)
