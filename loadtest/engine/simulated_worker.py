"""A worker without a model: it tracks each slot's request, as a real worker does, and returns results at once."""

import numpy as np
import numpy.typing as npt

from engine_core.step_plan import StepPlan, StepResult, pack_i32, unpack_i32


class SimulatedWorker:
    """The output of a request is `token_ids`, repeated without end; the request's handle decides the first token."""

    def __init__(self, num_slots: int, token_ids: npt.NDArray[np.int32]) -> None:
        self._handles = np.zeros(num_slots, dtype=np.int32)
        self._token_ids = token_ids

    def execute(self, plan: StepPlan) -> StepResult:
        """Returns the step's result: one token for each row that the plan samples."""
        for new in plan.new_requests:
            self._handles[new.slot] = new.handle
        rows = np.flatnonzero(unpack_i32(plan.sampled))
        handles = self._handles[unpack_i32(plan.slots)[rows]]
        indices = unpack_i32(plan.output_indices)[rows]
        return StepResult(
            plan.epoch,
            plan.step_id,
            pack_i32(handles),
            pack_i32(indices),
            pack_i32(np.ones(len(rows))),
            pack_i32(self._token_ids[(handles * 31 + indices) % len(self._token_ids)]),
            pack_i32(np.zeros(len(rows))),
            b"",
            b"",
        )
