"""The persistent batch: the worker's state of all requests, by slot, updated by each plan.

The engine assigns slots. A plan has new requests in full, with their output so far if they were preempted or resumed,
and running requests as changes. So a running request's sampled tokens are not sent back to the worker. Token ids stay
on the device; the host knows only their number.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import MAX_SCORED_TOKENS, BadMessage, NewRequest, SamplingParams, StepPlan, unpack_i32
from kernels.interface import DRAW, Ops
from kernels.transfer import to_device
from services.worker.block_tables import BlockTables
from services.worker.device import Device
from services.worker.logits.interface import LogitsRows, RowMasks
from services.worker.logits.pipeline import LogitsPipeline
from services.worker.logprobs import LogprobSlots
from services.worker.prompt_logprobs import PromptLogprobSlots, ScoredTokens
from services.worker.sampler import SampleRows, draw_of
from services.worker.slots import SlotTable

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int32, np.int64)
PADDING_SLOT = -1  # in slot_mapping: KV is not written


@dataclass(frozen=True)
class StepInputs:
    """A step's inputs on the host: R requests, T tokens, S sampled and Q scored rows. Requests with one token come
    first."""

    token_slots: Longs  # [T]: slot of the token's request
    positions: Longs  # [T]
    slot_mapping: Longs  # [groups, T]: block * block_size + offset, per KV group
    request_slots: Ints  # [R]
    query_start_loc: Ints  # [R + 1]
    seq_lens: Ints  # [R]: tokens with KV after the step
    logits_indices: Longs  # [S + Q], ascending: indices into the T tokens; logits are computed for these
    sampled_slots: Longs  # [S]
    sampled_positions: Longs  # [S]: position of the sampled token
    output_indices: Longs  # [S]: index of the sampled token in the output
    scored: ScoredTokens | None = None  # the Q tokens that give logprobs of the next prompt token; None: none

    @property
    def num_decodes(self) -> int:
        """Number of requests that compute one token."""
        return int(np.count_nonzero(np.diff(self.query_start_loc) == 1))

    @property
    def is_decode(self) -> bool:
        """Whether every request computes one token and samples one, and nothing else."""
        return self.scored is None and len(self.positions) == len(self.request_slots) == len(self.logits_indices)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns of `rows` [S + Q, ...], as of logits_indices, those of sampled and of scored tokens; None: none."""
        if self.scored is None:
            return rows, None
        is_scored = np.isin(self.logits_indices, self.scored.indices)
        places = (to_device(np.flatnonzero(mask), torch.int64, rows.device) for mask in (~is_scored, is_scored))
        sampled, scored = (rows.index_select(0, one) for one in places)
        return sampled, scored

    def padded(self, count: int) -> "StepInputs":
        """Returns this decode batch, padded to `count` requests, at least its own number.

        Padding has length 0, reads no KV and writes none. Unpadded stay
        sampled_slots, sampled_positions and output_indices.
        """
        more = count - len(self.request_slots)

        def fill(array: npt.NDArray[Number], value: int) -> npt.NDArray[Number]:
            padding = np.full((*array.shape[:-1], more), value, dtype=array.dtype)
            return np.concatenate((array, padding), axis=-1)

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


def dummy_inputs(count: int, longest: int, block_size: int, num_groups: int) -> StepInputs:
    """Returns inputs for the profile run: prompts of `count` tokens in total, at most `longest` each.

    All use slot 0 and block 0. One token is sampled, from the first token's hidden state.
    """
    full, rest = divmod(count, longest)
    lens = np.array([rest] * bool(rest) + [longest] * full, dtype=np.int32)
    starts = np.append(0, np.cumsum(lens)).astype(np.int32)
    positions, first = np.arange(count) - np.repeat(starts[:-1], lens), np.zeros(1, dtype=np.int64)
    return StepInputs(
        token_slots=np.zeros_like(positions),
        positions=positions,
        slot_mapping=np.tile(positions % block_size, (num_groups, 1)),
        request_slots=np.zeros_like(lens),
        query_start_loc=starts,
        seq_lens=lens,
        logits_indices=first,
        sampled_slots=first,
        sampled_positions=first,
        output_indices=first,
    )


def empty_inputs(num_groups: int) -> StepInputs:
    """Returns inputs without requests; padded, they are a batch of padding alone."""
    none, few = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    slots = np.zeros((num_groups, 0), dtype=np.int64)
    return StepInputs(none, none, slots, few, np.zeros(1, dtype=np.int32), few, none, none, none, none)


class InputBatch:
    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        vocab_size: int,
        device: Device,
        ops: Ops,
    ) -> None:
        self.slots = SlotTable(max_num_seqs)
        # [slots, max_model_len + 1] int32: async scheduling may sample one token past a request's end
        self.token_ids = torch.zeros(max_num_seqs, max_model_len + 1, dtype=torch.int32, device=device.torch_device)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)  # [slots]: prompt plus output
        self.tables = BlockTables(num_groups, max_num_seqs, -(-max_model_len // block_size), device)
        self.logits = LogitsPipeline(max_num_seqs, vocab_size, device.torch_device, ops)
        self._logprobs = LogprobSlots(max_num_seqs, device.torch_device)
        self.prompt_logprobs = PromptLogprobSlots(max_num_seqs)
        self._block_size = block_size
        self._place = device.torch_device
        self._last_step_id: int | None = None

    def append(self, inputs: StepInputs, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Stores sampled token_ids [S] as known tokens of their requests.

        `slots` and `positions` [S] int64: sampled_slots and sampled_positions of `inputs`, on the device.
        """
        self.token_ids.index_put_((slots, positions), token_ids.int())
        self.num_tokens[inputs.sampled_slots] += 1

    def apply(self, plan: StepPlan) -> StepInputs:
        """Applies a checked plan to the batch and returns the step's inputs.

        Raises BadMessage if the plan contradicts the batch's state.
        """
        if plan.base_step_id is None:
            self.slots.release_all()
        elif plan.base_step_id != self._last_step_id:
            raise BadMessage(
                f"plan {plan.step_id} is based on step {plan.base_step_id}, but the last step was {self._last_step_id}"
            )
        self._last_step_id = plan.step_id
        self.slots.release(plan.released_slots)
        for request in plan.new_requests:
            self._add(request)
        slots = unpack_i32(plan.slots)
        self.slots.check(slots)
        block_ids = np.stack([unpack_i32(ids) for ids in plan.block_ids])
        self.tables.append(slots, unpack_i32(plan.block_offsets[0]), block_ids)
        return self._inputs(plan, slots)

    def sample_rows(self, inputs: StepInputs, masks: RowMasks | None) -> SampleRows:
        """Returns how the sampled rows of a step are sampled, with the masks of those that have a grammar."""
        slots = inputs.sampled_slots
        draws = self.slots.draws[slots]
        draws["index"] = inputs.output_indices
        prompts = self.slots.num_prompt_tokens[slots]
        rows = LogitsRows(slots, inputs.output_indices, prompts, inputs.sampled_positions, self.token_ids, masks)
        return SampleRows(draws, rows, self._logprobs.rows(slots))

    def dummy_rows(self, sampling: SamplingParams, count: int, masks: RowMasks | None) -> SampleRows:
        """Returns `count` rows with these parameters and masks for the profile run, each of a request of full length.

        Overwrites how the requests of the first slots are sampled.
        """
        for slot in range(count):
            self._add_sampling(NewRequest(0, slot, b"", b"", [], sampling, 0, 0))
        slots, length = np.arange(count), self.token_ids.shape[1]
        lengths = np.full(count, length)
        draws = np.array([draw_of(sampling, 0, 0, 0)] * count, dtype=DRAW)
        rows = LogitsRows(slots, np.zeros_like(slots), lengths // 2, lengths, self.token_ids, masks)
        return SampleRows(draws, rows, self._logprobs.rows(slots))

    def _add_sampling(self, request: NewRequest) -> None:
        self.logits.add(request)
        self._logprobs.add(request)
        self.prompt_logprobs.add(request)

    def _add(self, request: NewRequest) -> None:
        prompt, output = unpack_i32(request.prompt_token_ids), unpack_i32(request.output_token_ids)
        self.slots.add(request, len(prompt))
        self._add_sampling(request)
        num_tokens = len(prompt) + len(output)
        known = to_device(np.concatenate((prompt, output)), torch.int32, self._place)
        self.token_ids[request.slot, :num_tokens] = known
        self.tables.start(request.slot, request.first_blocks, [unpack_i32(ids) for ids in request.block_ids])
        self.num_tokens[request.slot] = num_tokens

    def _inputs(self, plan: StepPlan, slots: Ints) -> StepInputs:
        num_new, computed = unpack_i32(plan.num_new_tokens), unpack_i32(plan.num_computed_tokens)
        ends = computed + num_new
        if (ends > self.num_tokens[slots]).any() or (ends > self.tables.num_blocks(slots) * self._block_size).any():
            raise BadMessage(f"plan {plan.step_id} computes tokens that are unknown or have no block")
        starts = np.zeros(len(slots) + 1, dtype=np.int32)
        np.cumsum(num_new, out=starts[1:])
        row_of = np.repeat(np.arange(len(slots)), num_new)  # [T]
        positions = np.arange(starts[-1]) - starts[row_of] + computed[row_of]
        token_slots = slots[row_of].astype(np.int64)
        blocks = self.tables.blocks(token_slots, positions // self._block_size).astype(np.int64)
        sampled = np.flatnonzero(unpack_i32(plan.sampled))
        sampled_slots = slots[sampled].astype(np.int64)
        logits_indices = starts[1:][sampled].astype(np.int64) - 1
        scored = self.prompt_logprobs.scored(slots, token_slots, positions)
        if scored is not None:
            if len(scored.indices) > MAX_SCORED_TOKENS + len(self.slots):
                raise BadMessage(f"plan {plan.step_id} computes {len(scored.indices)} prompt tokens with logprobs")
            logits_indices = np.union1d(logits_indices, scored.indices)
        return StepInputs(
            token_slots=token_slots,
            positions=positions,
            slot_mapping=np.ascontiguousarray(blocks * self._block_size + positions % self._block_size),
            request_slots=slots,
            query_start_loc=starts,
            seq_lens=ends,
            logits_indices=logits_indices,
            sampled_slots=sampled_slots,
            sampled_positions=self.num_tokens[sampled_slots],
            output_indices=unpack_i32(plan.output_indices)[sampled].astype(np.int64),
            scored=scored,
        )
