"""The worker's own state between steps: the requests in their slots, and the tensors of a step made from a plan.

Slots are the engine's; a plan says of running requests only what changed, so the tokens that this worker sampled
itself are never sent back to it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, SamplingParams, StepPlan, unpack_i32
from kernels.interface import AttentionInputs

Ints = npt.NDArray[np.int32]


class PlanError(Exception):
    """The plan does not follow from the one before it."""


@dataclass
class Slot:
    handle: int
    sampling: SamplingParams
    seed: int
    choice: int
    num_prompt_tokens: int
    num_tokens: int  # known: prompt plus output
    num_blocks: int


@dataclass(frozen=True)
class StepInputs:
    """R rows, T tokens, S rows that sample."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionInputs
    sampled_slots: list[int]  # S
    output_indices: list[int]  # S
    logit_indices: Tensor  # [S] int64: which of the T tokens give logits


class InputBatch:
    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.slots: list[Slot | None] = [None] * max_num_seqs
        self.token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
        self._block_tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), dtype=np.int32)
        self._block_size = block_size
        self._device = device
        self._last_step_id: int | None = None

    def slot(self, index: int) -> Slot:
        slot = self.slots[index]
        if slot is None:
            raise PlanError(f"slot {index} is empty")
        return slot

    def append(self, index: int, token_id: int) -> None:
        """A sampled token becomes known."""
        slot = self.slot(index)
        if slot.num_tokens < self.token_ids.shape[1]:
            self.token_ids[index, slot.num_tokens] = token_id
        slot.num_tokens += 1

    def apply(self, plan: StepPlan) -> StepInputs:
        """Takes the plan's changes and makes the step's tensors. Raises PlanError on a gap."""
        if plan.base_step_id is None:
            self.slots = [None] * len(self.slots)
        elif plan.base_step_id != self._last_step_id:
            raise PlanError(
                f"plan {plan.step_id} builds on step {plan.base_step_id}, the last was {self._last_step_id}"
            )
        self._last_step_id = plan.step_id
        for index in plan.released_slots:
            self.slots[index] = None
        for request in plan.new_requests:
            self._add(request)
        slots = unpack_i32(plan.slots)
        self._append_blocks(slots, unpack_i32(plan.block_offsets[0]), unpack_i32(plan.block_ids[0]))
        return self._inputs(plan, slots)

    def _add(self, request: NewRequest) -> None:
        if self.slots[request.slot] is not None:
            raise PlanError(f"slot {request.slot} is taken")
        prompt, output = unpack_i32(request.prompt_token_ids), unpack_i32(request.output_token_ids)
        num_tokens = len(prompt) + len(output)
        self.token_ids[request.slot, : len(prompt)] = prompt
        self.token_ids[request.slot, len(prompt) : num_tokens] = output
        block_ids = unpack_i32(request.block_ids[0])
        self._block_tables[request.slot, : len(block_ids)] = block_ids
        self.slots[request.slot] = Slot(
            request.handle, request.sampling, request.seed, request.choice, len(prompt), num_tokens, len(block_ids)
        )

    def _append_blocks(self, slots: Ints, offsets: Ints, block_ids: Ints) -> None:
        for row in np.flatnonzero(np.diff(offsets)).tolist():
            index, fresh = int(slots[row]), block_ids[offsets[row] : offsets[row + 1]]
            slot = self.slot(index)
            self._block_tables[index, slot.num_blocks : slot.num_blocks + len(fresh)] = fresh
            slot.num_blocks += len(fresh)

    def _inputs(self, plan: StepPlan, slots: Ints) -> StepInputs:
        num_new, computed = unpack_i32(plan.num_new_tokens), unpack_i32(plan.num_computed_tokens)
        starts = np.concatenate(([0], np.cumsum(num_new)))  # [R + 1]
        row_of = np.repeat(np.arange(len(slots)), num_new)  # [T]
        positions = np.arange(starts[-1]) - starts[row_of] + computed[row_of]
        token_slots = slots[row_of]
        blocks = self._block_tables[token_slots, positions // self._block_size]
        seq_lens = computed + num_new
        width = -(-int(seq_lens.max()) // self._block_size)
        sampled = np.flatnonzero(unpack_i32(plan.sampled))
        return StepInputs(
            input_ids=self._tensor(self.token_ids[token_slots, positions].astype(np.int64)),
            positions=self._tensor(positions.astype(np.int64)),
            attention=AttentionInputs(
                slot_mapping=self._tensor(blocks.astype(np.int64) * self._block_size + positions % self._block_size),
                block_tables=self._tensor(self._block_tables[slots, :width]),
                query_start_loc=self._tensor(starts.astype(np.int32)),
                seq_lens=self._tensor(seq_lens.astype(np.int32)),
                max_query_len=int(num_new.max()),
            ),
            sampled_slots=slots[sampled].tolist(),
            output_indices=unpack_i32(plan.output_indices)[sampled].tolist(),
            logit_indices=self._tensor(starts[1:][sampled].astype(np.int64) - 1),
        )

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
