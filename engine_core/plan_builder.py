"""Turns the rows that the scheduler chose into a StepPlan: new requests in full, the rest as columns."""

from dataclasses import dataclass, field

from engine_core.request import Request
from engine_core.step_plan import NewRequest, StepPlan, pack_i32


@dataclass(slots=True)
class Row:
    """`num_new_tokens` of a request are computed in this step; `first_new_block` is the first the worker lacks."""

    request: Request
    num_new_tokens: int
    first_new_block: int

    @property
    def samples(self) -> bool:
        return self.request.num_computed_tokens + self.num_new_tokens == self.request.num_tokens


@dataclass(slots=True)
class PlanBuilder:
    """The rows of one step, and the numbering of steps. A plan builds on the one before it."""

    epoch: int
    num_groups: int
    step_id: int = 0
    released_slots: list[int] = field(default_factory=list)

    def build(self, rows: list[Row], admitted: list[Request]) -> StepPlan:
        """The plan of the next step. Call it before num_computed_tokens moves."""
        self.step_id += 1
        released, self.released_slots = self.released_slots, []
        new = {id(request) for request in admitted}
        offsets, block_ids = self._new_blocks(rows, new)
        requests = [row.request for row in rows]
        return StepPlan(
            epoch=self.epoch,
            step_id=self.step_id,
            base_step_id=self.step_id - 1 if self.step_id > 1 else None,
            released_slots=released,
            new_requests=[self._in_full(request) for request in admitted],
            slots=pack_i32([_slot(request) for request in requests]),
            num_new_tokens=pack_i32([row.num_new_tokens for row in rows]),
            num_computed_tokens=pack_i32([request.num_computed_tokens for request in requests]),
            output_indices=pack_i32([request.num_output_tokens for request in requests]),
            sampled=pack_i32([int(row.samples) for row in rows]),
            block_offsets=offsets,
            block_ids=block_ids,
        )

    def _new_blocks(self, rows: list[Row], new: set[int]) -> tuple[list[bytes], list[bytes]]:
        offsets: list[bytes] = []
        ids: list[bytes] = []
        for group in range(self.num_groups):
            starts, flat = [0], list[int]()
            for row in rows:
                if id(row.request) not in new:
                    flat += [block.block_id for block in row.request.blocks[group][row.first_new_block :]]
                starts.append(len(flat))
            offsets.append(pack_i32(starts))
            ids.append(pack_i32(flat))
        return offsets, ids

    @staticmethod
    def _in_full(request: Request) -> NewRequest:
        return NewRequest(
            handle=request.handle,
            slot=_slot(request),
            prompt_token_ids=pack_i32(request.token_ids[: request.num_prompt_tokens]),
            output_token_ids=pack_i32(request.output_token_ids),
            block_ids=[pack_i32([block.block_id for block in blocks]) for blocks in request.blocks],
            sampling=request.sampling,
            seed=request.seed,
            choice=request.choice,
            traceparent=request.traceparent,
        )


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot
