"""The worker's own state between steps: the requests in their slots, and what a plan makes of them.

Slots are the engine's; a plan says of running requests only what changed, so the tokens that this worker sampled
itself are never sent back to it. Tokens live on the device, and what is sampled there need never come to the host: how
many there are is known without them.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import BadMessage, NewRequest, StepPlan, unpack_i32
from kernels.transfer import to_device
from services.worker.block_tables import BlockTables
from services.worker.device import Device
from services.worker.slots import SlotTable

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int32, np.int64)
PADDING_SLOT = -1  # the slot of a token whose KV is written nowhere


@dataclass(frozen=True)
class StepInputs:
    """R requests, T tokens, S rows that sample; on the host."""

    token_slots: Longs  # [T]: whose token it is
    positions: Longs  # [T]
    slot_mapping: Longs  # [T]: block * block_size + offset
    request_slots: Ints  # [R]
    query_start_loc: Ints  # [R + 1]
    seq_lens: Ints  # [R]
    logits_indices: Longs  # [S]: which of the T tokens give logits
    sampled_slots: Longs  # [S]
    sampled_positions: Longs  # [S]: where in the slot the new token goes
    output_indices: Longs  # [S]

    @property
    def is_decode(self) -> bool:
        """Whether every request computes one token and samples the next."""
        return len(self.positions) == len(self.request_slots) == len(self.logits_indices)

    def padded(self, count: int) -> "StepInputs":
        """As many requests of one token each, with ones that read and write nothing behind these; `is_decode` holds."""
        more = count - len(self.request_slots)

        def fill(array: npt.NDArray[Number], value: int) -> npt.NDArray[Number]:
            return np.concatenate((array, np.full(more, value, dtype=array.dtype)))

        return StepInputs(
            fill(self.token_slots, 0),
            fill(self.positions, 0),
            fill(self.slot_mapping, PADDING_SLOT),
            fill(self.request_slots, 0),
            np.arange(count + 1, dtype=np.int32),
            fill(self.seq_lens, 0),
            np.arange(count),
            self.sampled_slots,
            self.sampled_positions,
            self.output_indices,
        )


def dummy_inputs(count: int, longest: int, block_size: int) -> StepInputs:
    """Requests of `count` tokens together and `longest` each, all in slot 0, whose KV goes to block 0: to try kernels
    before there are requests."""
    starts = np.append(np.arange(0, count, longest), count).astype(np.int32)
    lens = np.diff(starts)
    positions, first = np.arange(count) % longest, np.zeros(1, dtype=np.int64)
    return StepInputs(
        token_slots=np.zeros_like(positions),
        positions=positions,
        slot_mapping=positions % block_size,
        request_slots=np.zeros_like(lens),
        query_start_loc=starts,
        seq_lens=lens,
        logits_indices=first,
        sampled_slots=first,
        sampled_positions=first,
        output_indices=first,
    )


def empty_inputs() -> StepInputs:
    """Of no requests: what a batch of padding is made of."""
    none, few = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    return StepInputs(none, none, none, few, np.zeros(1, dtype=np.int32), few, none, none, none, none)


class InputBatch:
    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int, device: Device) -> None:
        self.slots = SlotTable(max_num_seqs)
        # [slots, tokens] int32; one place more than a request has, for a token that is drawn beyond its end
        self.token_ids = torch.zeros(max_num_seqs, max_model_len + 1, dtype=torch.int32, device=device.torch_device)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)  # known: prompt plus output
        self.tables = BlockTables(max_num_seqs, -(-max_model_len // block_size), device)
        self._block_size = block_size
        self._place = device.torch_device
        self._last_step_id: int | None = None

    def append(self, inputs: StepInputs, slots: Tensor, places: Tensor, token_ids: Tensor) -> None:
        """One sampled token [S] becomes known; `slots` and `places` [S] int64 are those of `inputs`, on the device."""
        self.token_ids.index_put_((slots, places), token_ids.int())
        self.num_tokens[inputs.sampled_slots] += 1

    def apply(self, plan: StepPlan) -> StepInputs:
        """Takes the changes of a plan that was checked, and says what the step computes. Raises BadMessage where they
        do not follow from what is here."""
        if plan.base_step_id is None:
            self.slots.release_all()
        elif plan.base_step_id != self._last_step_id:
            raise BadMessage(
                f"plan {plan.step_id} builds on step {plan.base_step_id}, the last was {self._last_step_id}"
            )
        self._last_step_id = plan.step_id
        self.slots.release(plan.released_slots)
        for request in plan.new_requests:
            self._add(request)
        slots = unpack_i32(plan.slots)
        self.slots.check(slots)
        self.tables.append(slots, unpack_i32(plan.block_offsets[0]), unpack_i32(plan.block_ids[0]))
        return self._inputs(plan, slots)

    def _add(self, request: NewRequest) -> None:
        prompt, output = unpack_i32(request.prompt_token_ids), unpack_i32(request.output_token_ids)
        self.slots.add(request, len(prompt))
        num_tokens = len(prompt) + len(output)
        known = to_device(np.concatenate((prompt, output)), torch.int32, self._place)
        self.token_ids[request.slot, :num_tokens] = known
        self.tables.clear(request.slot)
        block_ids = unpack_i32(request.block_ids[0])
        self.tables.append(np.array([request.slot]), np.array([0, len(block_ids)]), block_ids)
        self.num_tokens[request.slot] = num_tokens

    def _inputs(self, plan: StepPlan, slots: Ints) -> StepInputs:
        num_new, computed = unpack_i32(plan.num_new_tokens), unpack_i32(plan.num_computed_tokens)
        ends = computed + num_new
        if (ends > self.num_tokens[slots]).any() or (ends > self.tables.num_blocks(slots) * self._block_size).any():
            raise BadMessage(f"plan {plan.step_id} computes tokens that are not known, or have no block")
        starts = np.zeros(len(slots) + 1, dtype=np.int32)
        np.cumsum(num_new, out=starts[1:])
        row_of = np.repeat(np.arange(len(slots)), num_new)  # [T]
        positions = np.arange(starts[-1]) - starts[row_of] + computed[row_of]
        token_slots = slots[row_of].astype(np.int64)
        blocks = self.tables.blocks(token_slots, positions // self._block_size).astype(np.int64)
        sampled = np.flatnonzero(unpack_i32(plan.sampled))
        sampled_slots = slots[sampled].astype(np.int64)
        return StepInputs(
            token_slots=token_slots,
            positions=positions,
            slot_mapping=blocks * self._block_size + positions % self._block_size,
            request_slots=slots,
            query_start_loc=starts,
            seq_lens=ends,
            logits_indices=starts[1:][sampled].astype(np.int64) - 1,
            sampled_slots=sampled_slots,
            sampled_positions=self.num_tokens[sampled_slots],
            output_indices=unpack_i32(plan.output_indices)[sampled].astype(np.int64),
        )
