"""The persistent batch: a plan's changes become a step's inputs; padding, the profile run, and contradictory plans."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine_core.step_plan import BadMessage, NewRequest, SamplingParams, StepPlan, pack_i32
from kernels.torch_ops import TorchOps
from services.worker.device import CpuDevice
from services.worker.grammar_masks import GrammarMasks
from services.worker.input_batch import InputBatch, StepInputs, dummy_inputs, empty_inputs
from services.worker.profile_sampling import everything

BLOCK_SIZE = 4


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(
        4,
        max_model_len=16,
        block_size=BLOCK_SIZE,
        num_groups=1,
        vocab_size=50,
        device=CpuDevice(lambda: 0),
        ops=TorchOps(),
    )


def new(slot: int, prompt: list[int], output: list[int], blocks: list[int]) -> NewRequest:
    sampling = SamplingParams(max_tokens=5)
    return NewRequest(100 + slot, slot, pack_i32(prompt), pack_i32(output), [pack_i32(blocks)], sampling, 0, 0)


def plan(step_id: int, rows: list[tuple[int, int, int, int]], **changes: Any) -> StepPlan:
    """`rows` are (slot, new tokens, computed tokens, sampled). The step is based on the one before."""
    columns = [pack_i32([row[index] for row in rows]) for index in range(4)]
    made = StepPlan(
        epoch=1, step_id=step_id, base_step_id=step_id - 1 or None, released_slots=[], new_requests=[],
        slots=columns[0], num_new_tokens=columns[1], num_computed_tokens=columns[2],
        output_indices=pack_i32([0] * len(rows)), sampled=columns[3],
        block_offsets=[pack_i32([0] * (len(rows) + 1))], block_ids=[b""],
    )  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def arrays(inputs: StepInputs) -> dict[str, list[int]]:
    return {name: value.tolist() for name, value in vars(inputs).items() if value is not None}


def test_new_requests_in_chunks_become_inputs(batch: InputBatch) -> None:
    """Slot 2 computes five of its six tokens, slot 0 both of its tokens and samples its third."""
    requests = [new(2, [11, 12, 13, 14, 15], [16], [7, 3]), new(0, [21, 22], [], [5])]
    inputs = batch.apply(plan(1, [(2, 5, 0, 0), (0, 2, 0, 1)], new_requests=requests))
    assert arrays(inputs) == {
        "token_slots": [2, 2, 2, 2, 2, 0, 0],
        "positions": [0, 1, 2, 3, 4, 0, 1],
        "slot_mapping": [[28, 29, 30, 31, 12, 20, 21]],
        "request_slots": [2, 0],
        "query_start_loc": [0, 5, 7],
        "seq_lens": [5, 2],
        "logits_indices": [6],
        "sampled_slots": [0],
        "sampled_positions": [2],
        "output_indices": [0],
    }
    assert batch.token_ids[2, :6].tolist() == [11, 12, 13, 14, 15, 16] and not inputs.is_decode


def test_single_tokens_beside_prompts_are_counted(batch: InputBatch) -> None:
    prompts = [new(0, [21, 22], [], [5]), new(2, [11, 12, 13], [], [7]), new(3, [31], [32], [6])]
    rows = [(0, 1, 1, 1), (2, 3, 0, 1), (3, 2, 0, 1)]
    inputs = batch.apply(plan(1, rows, new_requests=prompts))
    assert inputs.num_decodes == 1 and not inputs.is_decode
    assert inputs.logits_indices.tolist() == [0, 3, 5] and inputs.sampled_positions.tolist() == [2, 3, 2]


def test_a_sampled_token_is_the_next_steps_input_without_the_engine(batch: InputBatch) -> None:
    first = batch.apply(plan(1, [(1, 3, 0, 1)], new_requests=[new(1, [1, 2, 3], [], [6])]))
    batch.append(first, torch.tensor([1]), torch.from_numpy(first.sampled_positions), torch.tensor([42]))
    assert batch.token_ids[1, :4].tolist() == [1, 2, 3, 42] and batch.num_tokens[1] == 4
    second = batch.apply(plan(2, [(1, 1, 3, 1)]))
    assert second.is_decode and (second.positions, second.slot_mapping, second.seq_lens) == ([3], [[27]], [4])
    batch.append(second, torch.tensor([1]), torch.from_numpy(second.sampled_positions), torch.tensor([43]))
    third = batch.apply(plan(3, [(1, 1, 4, 1)], block_offsets=[pack_i32([0, 1])], block_ids=[pack_i32([2])]))
    assert third.slot_mapping == [[8]], "the appended block is used"
    assert batch.tables.on_device[0, 1, :2].tolist() == [6, 2]


def test_a_released_slot_takes_another_request_and_forgets_its_blocks(batch: InputBatch) -> None:
    batch.apply(plan(1, [(0, 2, 0, 0)], new_requests=[new(0, [1, 2], [], [9, 8])]))
    inputs = batch.apply(plan(2, [(0, 1, 0, 0)], released_slots=[0], new_requests=[new(0, [5], [], [4])]))
    assert inputs.slot_mapping == [[16]] and batch.tables.num_blocks(np.array([0])) == [1]


def test_a_plan_without_a_base_empties_all_slots(batch: InputBatch) -> None:
    batch.apply(plan(1, [(0, 2, 0, 0)], new_requests=[new(0, [1, 2], [], [1])]))
    batch.apply(plan(9, [(0, 1, 0, 0)], base_step_id=None, new_requests=[new(0, [3], [], [2])]))
    with pytest.raises(BadMessage, match="slot 1 is empty"):
        batch.apply(plan(10, [(1, 1, 0, 0)]))


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (plan(3, [(0, 1, 1, 0)]), "plan 3 is based on step 2, but the last step was 1"),
        (plan(2, [(0, 1, 0, 0)], new_requests=[new(0, [1], [], [1])]), "slot 0 is taken"),
        (plan(2, [(0, 1, 2, 0)]), "plan 2 computes tokens that are unknown or have no block"),
        (plan(2, [(3, 1, 0, 0)], new_requests=[new(3, [1] * 5, [], [])]), "unknown or have no block"),
        (
            plan(2, [(0, 1, 1, 0)], block_offsets=[pack_i32([0, 4])], block_ids=[pack_i32([1, 2, 3, 4])]),
            "a request would have more than 4 blocks",
        ),
    ],
    ids=["gap", "taken slot", "unknown token", "no block", "too many blocks"],
)
def test_a_plan_that_contradicts_the_batch_is_refused(batch: InputBatch, second: StepPlan, text: str) -> None:
    batch.apply(plan(1, [(0, 2, 0, 0)], new_requests=[new(0, [1, 2], [], [1])]))
    with pytest.raises(BadMessage, match=text):
        batch.apply(second)


def test_padding_reads_no_kv_and_writes_none(batch: InputBatch) -> None:
    batch.apply(plan(1, [(3, 2, 0, 0)], new_requests=[new(3, [1, 2], [9], [5])]))
    padded = batch.apply(plan(2, [(3, 1, 2, 1)])).padded(3)
    assert padded.is_decode and padded.query_start_loc.tolist() == [0, 1, 2, 3]
    assert padded.seq_lens.tolist() == [3, 0, 0] and padded.slot_mapping.tolist() == [[22, -1, -1]]
    assert padded.logits_indices.tolist() == [0, 1, 2] and padded.sampled_slots.tolist() == [3]
    alone = empty_inputs(1).padded(2)
    assert alone.is_decode and alone.seq_lens.tolist() == [0, 0] and alone.slot_mapping.tolist() == [[-1, -1]]


def test_dummy_inputs_are_prompts_of_the_asked_for_lengths() -> None:
    inputs = dummy_inputs(10, 4, BLOCK_SIZE, num_groups=1)
    assert inputs.seq_lens.tolist() == [2, 4, 4] and inputs.query_start_loc.tolist() == [0, 2, 6, 10]
    assert inputs.positions.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2, 3]
    assert inputs.slot_mapping.max() < BLOCK_SIZE, "another block than 0 is used"


def test_a_sampled_row_has_its_requests_parameters_and_tokens(batch: InputBatch) -> None:
    biased = SamplingParams(
        5, logprobs=0, logit_bias_token_ids=pack_i32([4]), logit_biases=np.array([2.5], dtype="<f4").tobytes(),
        logprob_token_ids=pack_i32([9, 8]),
    )  # fmt: skip
    first = NewRequest(1, 2, pack_i32([1, 2]), pack_i32([3]), [pack_i32([5])], biased, 7, 0)
    requests = [first, new(0, [4, 5], [], [6])]
    inputs = batch.apply(plan(1, [(2, 3, 0, 1), (0, 2, 0, 1)], new_requests=requests, output_indices=pack_i32([1, 0])))
    rows = batch.sample_rows(inputs, None)
    assert (rows.draws["seed"].tolist(), rows.draws["index"].tolist()) == ([7, 0], [1, 0])
    assert (rows.logits.slots.tolist(), rows.logits.output_indices.tolist()) == ([2, 0], [1, 0])
    assert (rows.logits.num_prompt_tokens.tolist(), rows.logits.num_tokens.tolist()) == ([2, 2], [3, 2])
    assert rows.logprobs.counts.tolist() == [2, -1]
    assert {row: ids.tolist() for row, ids in rows.logprobs.token_ids.items()} == {0: [9, 8]}
    adjusted = batch.logits.adjust(torch.zeros(2, 50), rows.logits)
    assert adjusted.nonzero().tolist() == [[0, 4]] and adjusted[0, 4] == 2.5


def test_dummy_rows_use_every_processor_and_the_next_request_forgets_them(batch: InputBatch) -> None:
    dummy = batch.dummy_rows(everything(50, logprobs=3), 4, GrammarMasks(4, 50, CpuDevice(lambda: 0)).dummy(4))
    assert all(processor.selects(dummy.logits).all() for processor in batch.logits._processors)
    assert dummy.logits.num_tokens.tolist() == [17] * 4
    inputs = batch.apply(plan(1, [(1, 2, 0, 1)], new_requests=[new(1, [1, 2], [], [6])]))
    logits = torch.zeros(1, 50)
    assert batch.logits.adjust(logits, batch.sample_rows(inputs, None).logits) is logits


def test_a_scored_token_is_no_decode(batch: InputBatch) -> None:
    """As many rows need logits as requests run, but one of them samples nothing."""
    request = new(2, [1, 2, 3], [], [5])
    scored = msgspec.structs.replace(request, sampling=SamplingParams(4, prompt_logprobs=1))
    inputs = batch.apply(plan(1, [(2, 1, 0, 0)], new_requests=[scored]))
    assert not inputs.is_decode and inputs.scored is not None
    assert inputs.logits_indices.tolist() == inputs.scored.indices.tolist() == [0]
    sampled, rows = inputs.split(torch.ones(1, 4))
    assert rows is not None and (len(sampled), len(rows)) == (0, 1)
