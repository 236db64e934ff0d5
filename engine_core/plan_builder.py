"""Turns the rows that the scheduler chose into a StepPlan: new requests in full, running ones as columns."""

from dataclasses import dataclass, field

import numpy as np

from engine_core.batch import Batch, Ints
from engine_core.request import Request
from engine_core.step_plan import NewRequest, StepPlan, pack_i32


@dataclass(slots=True)
class PlanBuilder:
    """Builds and numbers the plans of one worker; they carry its `epoch`. Each plan is a diff to the one before it.

    `num_groups` is the number of KV groups.
    """

    epoch: int
    num_groups: int
    step_id: int = 0
    released_slots: list[int] = field(default_factory=list)  # since the last plan
    dropped_grammars: list[int] = field(default_factory=list)  # since the last plan; handles

    def build(self, batch: Batch, slots: Ints, num_new_tokens: Ints, admitted: list[Request]) -> StepPlan:
        """Returns the plan of the next step, and counts its tokens as computed in `batch`.

        Counts the requests' blocks as sent, and empties `released_slots` and `dropped_grammars`, which the plan has.
        `slots` and `num_new_tokens` are [rows] int32, by rank. `admitted`: those of its requests that the worker does
        not have.
        """
        self.step_id += 1
        released, self.released_slots = self.released_slots, []
        dropped, self.dropped_grammars = self.dropped_grammars, []
        new_requests = [self._new_request(batch, request) for request in admitted]
        order = np.argsort(num_new_tokens > 1, kind="stable")
        slots, num_new_tokens = slots[order], num_new_tokens[order]
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
            dropped_grammars=dropped,
        )

    def _new_blocks(self, batch: Batch, slots: Ints) -> tuple[list[bytes], list[bytes]]:
        """Returns the blocks that no plan has sent yet: offsets and block ids, one int32 column each per KV group.

        Counts them as sent. Row i has the ids from offsets[i] to offsets[i + 1]; offsets are [rows + 1].
        """
        counts = batch.num_blocks[slots] - batch.num_sent_blocks[slots]
        flat: list[list[int]] = [[] for _ in range(self.num_groups)]
        changed = slots[counts > 0]
        for slot, num_sent in zip(changed.tolist(), batch.num_sent_blocks[changed].tolist(), strict=True):
            for ids, blocks in zip(flat, batch.at(slot).blocks, strict=True):
                ids += [block.block_id for block in blocks[num_sent:]]
        batch.num_sent_blocks[changed] = batch.num_blocks[changed]
        offsets = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        return [pack_i32(offsets)] * self.num_groups, [pack_i32(ids) for ids in flat]

    @staticmethod
    def _new_request(batch: Batch, request: Request) -> NewRequest:
        assert request.slot is not None
        batch.num_sent_blocks[request.slot] = batch.num_blocks[request.slot]
        firsts = list(map(len, request.given_back))
        return NewRequest(
            handle=request.handle,
            slot=request.slot,
            prompt_token_ids=pack_i32(request.token_ids[: request.num_prompt_tokens]),
            output_token_ids=pack_i32(request.output_token_ids),
            block_ids=[
                pack_i32([block.block_id for block in blocks[first:]])
                for blocks, first in zip(request.blocks, firsts, strict=True)
            ],
            sampling=request.sampling,
            seed=request.seed,
            choice=request.choice,
            traceparent=request.traceparent,
            has_grammar=bool(request.grammar),
            prompt_logprobs_from=request.next_prompt_logprob,
            first_blocks=firsts if any(firsts) else [],
        )
