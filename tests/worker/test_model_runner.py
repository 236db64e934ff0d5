"""The model runner with hand-made plans: shuffled block tables and any chunking give transformers' logprobs."""

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.result_check import ResultCheck, ResultRows
from engine_core.step_plan import BadMessage, NewRequest, SamplingParams, StepPlan, StepResult, pack_i32, unpack_i32
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.worker.block_tables import BlockTables
from services.worker.building import build_runner
from services.worker.device import CpuDevice, Device
from services.worker.input_batch import InputBatch
from services.worker.loading import load_model
from services.worker.model_runner import ModelRunner
from services.worker.models.decoder import Decoder
from services.worker.phases import Phases
from services.worker.sampler import FAULTS
from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3

MAX_LOGPROBS = WorkerOptions.max_logprobs
BLOCK_SIZE = 4
NUM_BLOCKS = 64
LIMITS = BatchLimits(1, max_num_seqs=8, max_num_batched_tokens=256)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), seed=11, max_position_embeddings=128)


def make_runner(path: Path, device: Device | None = None) -> ModelRunner:
    per_block = 2 * 2 * BLOCK_SIZE * 2 * 16 * 4
    options = WorkerOptions(
        model=str(path), device="cpu", dtype="float32", block_size=BLOCK_SIZE, max_model_len=128,
        kv_cache_memory_bytes=NUM_BLOCKS * per_block,
    )  # fmt: skip
    return build_runner(load_model(path, options), options, LIMITS, Phases(), device)[0]


class HandMadePlans:
    """Builds plans without a scheduler: each request gets random blocks as it grows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.free = list(range(NUM_BLOCKS))
        self.random.shuffle(self.free)
        self.step_id = 0

    def new(self, slot: int, prompt: list[int], first_blocks: int) -> NewRequest:
        sampling = SamplingParams(max_tokens=50, temperature=0.0, logprobs=3)
        return NewRequest(slot + 100, slot, pack_i32(prompt), b"", [pack_i32(self.take(first_blocks))], sampling, 0, 0)

    def take(self, count: int) -> list[int]:
        return [self.free.pop() for _ in range(count)]

    def plan(
        self, rows: list[tuple[int, int, int, bool]], new: list[NewRequest], fresh: list[list[int]], outputs: list[int]
    ) -> StepPlan:
        """`rows` are (slot, new tokens, computed tokens, samples), in any order."""
        self.step_id += 1
        order = sorted(range(len(rows)), key=lambda row: rows[row][1] > 1)
        rows, fresh, outputs = ([column[row] for row in order] for column in (rows, fresh, outputs))
        starts = [0]
        for blocks in fresh:
            starts.append(starts[-1] + len(blocks))
        return StepPlan(
            7, self.step_id, self.step_id - 1 or None, [], new,
            pack_i32([row[0] for row in rows]), pack_i32([row[1] for row in rows]), pack_i32([row[2] for row in rows]),
            pack_i32(outputs), pack_i32([int(row[3]) for row in rows]),
            [pack_i32(starts)], [pack_i32([block for blocks in fresh for block in blocks])],
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_any_chunks_and_any_blocks_give_transformers_logprobs(path: Path, seed: int) -> None:
    plans = HandMadePlans(seed)
    source = plans.random
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    runner = make_runner(path)
    prompts = [[source.randrange(DEMO_VOCAB_SIZE) for _ in range(source.randint(1, 40))] for _ in range(4)]
    known = [list(prompt) for prompt in prompts]
    computed, num_blocks = [0] * 4, [0] * 4
    for _ in range(25):
        rows, new, fresh, outputs = [], [], [], []
        for slot in range(4):
            left = len(known[slot]) - computed[slot]
            count = min(left, source.randint(1, 11))
            wanted = -(-(computed[slot] + count) // BLOCK_SIZE) - num_blocks[slot]
            if computed[slot] == 0:
                new.append(plans.new(slot, prompts[slot], wanted))
                fresh.append([])
            else:
                fresh.append(plans.take(wanted))
            rows.append((slot, count, computed[slot], count == left))
            outputs.append(len(known[slot]) - len(prompts[slot]))
            num_blocks[slot] += wanted
            computed[slot] += count
        result = runner.execute(plans.plan(rows, new, fresh, outputs))
        assert len(unpack_i32(result.handles)) == sum(row[3] for row in rows)
        take_tokens(model, result, known)
    assert all(len(tokens) > len(prompt) for tokens, prompt in zip(known, prompts, strict=True))


def take_tokens(model: torch.nn.Module, result: StepResult, known: list[list[int]]) -> None:
    """Compares each sampled token's logprobs with a full forward pass, then counts the token as known."""
    values = np.frombuffer(result.logprobs, dtype="<f4").reshape(-1, 4).tolist()
    rows = zip(unpack_i32(result.handles).tolist(), unpack_i32(result.token_ids).tolist(), values, strict=True)
    for handle, token_id, (sampled, best, *_) in rows:
        tokens = known[handle - 100]
        with torch.inference_mode():
            expected = torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1], dim=-1)
        assert sampled == pytest.approx(expected[token_id].item(), abs=1e-4)
        assert best == pytest.approx(expected.max().item(), abs=1e-4)
        tokens.append(token_id)


def test_a_gap_between_plans_is_noticed(path: Path) -> None:
    plans, runner = HandMadePlans(0), make_runner(path)
    runner.execute(plans.plan([(0, 2, 0, True)], [plans.new(0, [1, 2], 1)], [[]], [0]))
    plans.step_id += 1
    with pytest.raises(BadMessage, match="plan 3 is based on step 2, but the last step was 1"):
        runner.execute(plans.plan([(0, 1, 2, True)], [], [[]], [1]))


def test_a_taken_slot_is_noticed(path: Path) -> None:
    plans, runner = HandMadePlans(0), make_runner(path)
    runner.execute(plans.plan([(0, 2, 0, True)], [plans.new(0, [1, 2], 1)], [[]], [0]))
    with pytest.raises(BadMessage, match="slot 0 is taken"):
        runner.execute(plans.plan([(0, 2, 0, True)], [plans.new(0, [3, 4], 1)], [[]], [0]))


def test_a_result_has_the_columns_that_the_engine_demands(path: Path) -> None:
    """Rows with and without logprobs, with requested ones, rows that sample nothing, and slots in no order."""
    plans, counts = HandMadePlans(0), {5: None, 0: 0, 3: 3, 7: 2, 2: MAX_LOGPROBS, 6: 1}
    new = [plans.new(slot, [1, 2], 1) for slot in counts]
    for request, count in zip(new, counts.values(), strict=True):
        ids = pack_i32([4, 3] if request.slot == 6 else [])
        request.sampling = SamplingParams(max_tokens=50, logprobs=count, logprob_token_ids=ids)
    rows = [(slot, 2 if slot != 7 else 1, 0, slot != 7) for slot in counts]
    result = make_runner(path).execute(plans.plan(rows, new, [[] for _ in new], [0] * 6))
    widths = [0, 1, 4, 1 + MAX_LOGPROBS, 3]
    demanded = ResultRows(pack_i32([105, 100, 103, 102, 106]), pack_i32([0] * 5), pack_i32(widths))
    ResultCheck(DEMO_VOCAB_SIZE)(result, demanded)
    assert unpack_i32(result.logprob_token_ids)[-2:].tolist() == [4, 3]


def test_a_row_with_nan_ends_alone(path: Path) -> None:
    """One request's KV is NaN: its row is an error, and the other request's answer does not change."""
    healthy = make_runner(path).execute(
        HandMadePlans(0).plan([(1, 3, 0, True)], [HandMadePlans(1).new(1, [5, 6, 7], 1)], [[]], [0])
    )
    plans, runner = HandMadePlans(0), make_runner(path)
    first, second = plans.new(0, [1, 2], 1), plans.new(1, [5, 6, 7], 1)
    runner.execute(plans.plan([(0, 1, 0, False)], [first], [[]], [0]))
    poisoned = int(unpack_i32(first.block_ids[0])[0])
    runner._forward._cache[0][0][poisoned] = float("nan")
    result = runner.execute(plans.plan([(0, 1, 1, True), (1, 3, 0, True)], [second], [[], []], [0, 0]))
    assert [handle for handle, _ in result.errors] == [100]
    assert unpack_i32(result.handles).tolist() == [101]
    ResultCheck(DEMO_VOCAB_SIZE)(result, ResultRows(pack_i32([100, 101]), pack_i32([0, 0]), pack_i32([4, 4])))
    assert result.token_ids == healthy.token_ids


def test_a_row_without_a_token_left_is_an_error_and_the_others_are_answered(path: Path) -> None:
    plans, runner = HandMadePlans(0), make_runner(path)
    first, second = plans.new(0, [1, 2], 1), plans.new(1, [5, 6, 7], 1)
    first.sampling = SamplingParams(50, allowed_token_ids=pack_i32([9]), bad_words_token_ids=(pack_i32([9]),))
    result = runner.execute(plans.plan([(0, 2, 0, True), (1, 3, 0, True)], [first, second], [[], []], [0, 0]))
    assert result.errors == [(100, FAULTS[2].message)] and result.error_causes == ["no_token_left"]
    assert unpack_i32(result.handles).tolist() == [101]


def test_the_hosts_work_before_the_copy_of_the_inputs_is_no_kernel_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel clock goes on where the host prepares the inputs, and in the forward pass: only the latter counts."""
    clock = [0]

    def ticking(owner: type, name: str, ticks: int) -> None:
        right = getattr(owner, name)

        def call(*args: Any) -> Any:
            clock[0] += ticks
            return right(*args)

        monkeypatch.setattr(owner, name, call)

    ticking(InputBatch, "apply", 10_000)
    ticking(BlockTables, "copy_to_device", 1_000)
    ticking(Decoder, "forward", 20)
    ticking(Decoder, "logits", 3)
    plans, runner = HandMadePlans(0), make_runner(path, CpuDevice(lambda: clock[0]))
    began = time.perf_counter_ns()
    launched = runner.launch(plans.plan([(0, 2, 0, True)], [plans.new(0, [1, 2], 1)], [[]], [0]))
    assert runner.kernel_nanoseconds(launched) == 23
    assert 0 < runner.launch_nanoseconds(launched) < time.perf_counter_ns() - began
