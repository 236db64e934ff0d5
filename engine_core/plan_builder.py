"""Turns the rows that the scheduler chose into a StepPlan: new requests in full, the rest as columns."""

from dataclasses import dataclass, field

import numpy as np

from engine_core.batch import Batch, Ints
from engine_core.request import Request
from engine_core.step_plan import NewRequest, StepPlan, pack_i32


@dataclass(slots=True)
class PlanBuilder:
    """The rows of one step, and the numbering of steps. A plan builds on the one before it."""

    epoch: int
    num_groups: int
    step_id: int = 0
    released_slots: list[int] = field(default_factory=list)

    def build(self, batch: Batch, slots: Ints, num_new_tokens: Ints, admitted: list[Request]) -> StepPlan:
        """The plan of the next step, [rows] each; the batch advances by it."""
        self.step_id += 1
        released, self.released_slots = self.released_slots, []
        new_requests = [self._in_full(batch, request) for request in admitted]
        offsets, block_ids = self._new_blocks(batch, slots)
        num_computed, output_indices = batch.num_computed[slots], batch.sample_end[slots]
        return StepPlan(
            epoch=self.epoch,
            step_id=self.step_id,
            base_step_id=self.step_id - 1 if self.step_id > 1 else None,
            released_slots=released,
            new_requests=new_requests,
            slots=pack_i32(slots),
            num_new_tokens=pack_i32(num_new_tokens),
            num_computed_tokens=pack_i32(num_computed),
            output_indices=pack_i32(output_indices),
            sampled=pack_i32(batch.advance(slots, num_new_tokens)),
            block_offsets=offsets,
            block_ids=block_ids,
        )

    def _new_blocks(self, batch: Batch, slots: Ints) -> tuple[list[bytes], list[bytes]]:
        """For each KV group, the blocks that the worker does not know of yet."""
        counts = batch.num_blocks[slots] - batch.num_sent_blocks[slots]
        flat: list[list[int]] = [[] for _ in range(self.num_groups)]
        fresh = slots[counts > 0]
        for slot, known in zip(fresh.tolist(), batch.num_sent_blocks[fresh].tolist(), strict=True):
            for ids, blocks in zip(flat, batch.at(slot).blocks, strict=True):
                ids += [block.block_id for block in blocks[known:]]
        batch.num_sent_blocks[fresh] = batch.num_blocks[fresh]
        offsets = pack_i32(np.concatenate(([0], np.cumsum(counts))))
        return [offsets] * self.num_groups, [pack_i32(ids) for ids in flat]

    @staticmethod
    def _in_full(batch: Batch, request: Request) -> NewRequest:
        assert request.slot is not None
        batch.num_sent_blocks[request.slot] = batch.num_blocks[request.slot]
        return NewRequest(
            handle=request.handle,
            slot=request.slot,
            prompt_token_ids=pack_i32(request.token_ids[: request.num_prompt_tokens]),
            output_token_ids=pack_i32(request.output_token_ids),
            block_ids=[pack_i32([block.block_id for block in blocks]) for blocks in request.blocks],
            sampling=request.sampling,
            seed=request.seed,
            choice=request.choice,
            traceparent=request.traceparent,
        )
