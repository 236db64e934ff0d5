"""An invalid plan is refused before anything is computed with it: its numbers become addresses in kernels."""

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine_core.step_plan import BadMessage, NewRequest, SamplingParams, StepPlan, ThinkingBudget, pack_i32, unpack_i32
from services.worker.plan_check import PlanCheck
from tests.checkpoints import make_qwen3
from tests.worker.sample_rows import budget
from tests.worker.test_model_runner import HandMadePlans, make_runner

CHECK = PlanCheck(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=32,
    block_size=4,
    num_groups=1,
    num_blocks=16,
    vocab_size=50,
    max_logprobs=20,
)
SAMPLING = SamplingParams(max_tokens=5, eos_token_ids=(2,), logprobs=3)
NEW = NewRequest(7, 1, pack_i32([1, 2, 3]), pack_i32([4]), [pack_i32([3, 9])], SAMPLING, 2**64 - 1, 0)
PLAN = StepPlan(
    epoch=1,
    step_id=1,
    base_step_id=None,
    released_slots=[0],
    new_requests=[NEW],
    slots=pack_i32([4, 1]),
    num_new_tokens=pack_i32([1, 4]),
    num_computed_tokens=pack_i32([12, 0]),
    output_indices=pack_i32([3, 1]),
    sampled=pack_i32([0, 1]),
    block_offsets=[pack_i32([0, 1, 1])],
    block_ids=[pack_i32([15])],
)


def new(**changes: Any) -> dict[str, Any]:
    return {"new_requests": [msgspec.structs.replace(NEW, **changes)]}


def sampled(**changes: Any) -> dict[str, Any]:
    return new(sampling=msgspec.structs.replace(SAMPLING, **changes))


NO_ROWS = dict.fromkeys(("slots", "num_new_tokens", "num_computed_tokens", "output_indices", "sampled"), b"")
BAD: dict[str, dict[str, Any]] = {
    "no rows": NO_ROWS | {"block_offsets": [pack_i32([0])], "block_ids": [b""]},
    "half a number": {"slots": b"\0" * 7},
    "a slot that is not there": {"slots": pack_i32([1, 8])},
    "a slot below zero": {"slots": pack_i32([1, -1])},
    "a slot twice": {"slots": pack_i32([1, 1])},
    "a column too short": {"num_computed_tokens": pack_i32([0])},
    "tokens beyond the step": {"num_new_tokens": pack_i32([1, 64])},
    "a row without tokens": {"num_new_tokens": pack_i32([0, 4])},
    "tokens below zero": {"num_new_tokens": pack_i32([-1, 4])},
    "several tokens before one": {"num_new_tokens": pack_i32([4, 1])},
    "a request beyond its length": {"num_computed_tokens": pack_i32([32, 0])},
    "computed below zero": {"num_computed_tokens": pack_i32([12, -1])},
    "an index below zero": {"output_indices": pack_i32([3, -1])},
    "sampled twice": {"sampled": pack_i32([0, 2])},
    "a block that is not there": {"block_ids": [pack_i32([16])]},
    "a block below zero": {"block_ids": [pack_i32([-1])]},
    "blocks left over": {"block_ids": [pack_i32([15, 3])]},
    "offsets that go back": {"block_offsets": [pack_i32([0, 1, 0])]},
    "offsets that begin late": {"block_offsets": [pack_i32([1, 1, 1])]},
    "no group": {"block_offsets": [], "block_ids": []},
    "two groups": {"block_offsets": [pack_i32([0, 1, 1])] * 2, "block_ids": [pack_i32([15])] * 2},
    "a released slot that is not there": {"released_slots": [8]},
    "a released slot below zero": {"released_slots": [-1]},
    "more new requests than slots": {"new_requests": [NEW] * 9},
    "a new request without a prompt": new(prompt_token_ids=b""),
    "a prompt beyond the length": new(prompt_token_ids=pack_i32([1] * 33)),
    "a token beyond the vocabulary": new(prompt_token_ids=pack_i32([50])),
    "an output token below zero": new(output_token_ids=pack_i32([-1])),
    "a new slot that is not there": new(slot=8),
    "a new slot below zero": new(slot=-1),
    "a new block that is not there": new(block_ids=[pack_i32([16])]),
    "too many new blocks": new(block_ids=[pack_i32([0] * 9)]),
    "no group of blocks": new(block_ids=[]),
    "a handle beyond 32 bits": new(handle=2**31),
    "a seed below zero": new(seed=-1),
    "a choice below zero": new(choice=-1),
    "a stop token beyond the vocabulary": sampled(stop_token_ids=(50,)),
    "an end token below zero": sampled(eos_token_ids=(-1,)),
    "too many logprobs": sampled(logprobs=21),
    "logprobs below zero": sampled(logprobs=-1),
    "top_k below everything": sampled(top_k=-2),
    "min_tokens below zero": sampled(min_tokens=-1),
    "too many end tokens": sampled(eos_token_ids=(2,) * 1153),
    "a biased token beyond the vocabulary": sampled(logit_bias_token_ids=pack_i32([50]), logit_biases=b"\0" * 4),
    "a bias without a value": sampled(logit_bias_token_ids=pack_i32([5])),
    "too many biases": sampled(logit_bias_token_ids=pack_i32([5] * 1025), logit_biases=b"\0" * 4100),
    "an allowed token below zero": sampled(allowed_token_ids=pack_i32([-1])),
    "more allowed tokens than the vocabulary": sampled(allowed_token_ids=pack_i32([1] * 51)),
    "half a bad word": sampled(bad_words_token_ids=(b"\0" * 6,)),
    "an empty bad word": sampled(bad_words_token_ids=(b"",)),
    "a bad word too long": sampled(bad_words_token_ids=(pack_i32([1] * 33),)),
    "too many bad words": sampled(bad_words_token_ids=(pack_i32([1]),) * 2049),
    "a bad word beyond the vocabulary": sampled(bad_words_token_ids=(pack_i32([1, 50]),)),
    "a thinking budget without an end": sampled(thinking_budget=budget(5, [1], [])),
    "a start of reasoning too long": sampled(thinking_budget=budget(5, [1] * 65, [2])),
    "an end of reasoning too long": sampled(thinking_budget=budget(5, [], [2] * 65)),
    "a marker beyond the vocabulary": sampled(thinking_budget=budget(5, [], [50])),
    "half a marker": sampled(thinking_budget=ThinkingBudget(5, b"\0" * 3, b"\0" * 4)),
    "thinking tokens below zero": sampled(thinking_budget=budget(-1, [], [2])),
    "thinking tokens beyond 31 bits": sampled(thinking_budget=budget(2**31, [], [2])),
    "too many requested logprobs": sampled(logprob_token_ids=pack_i32([1] * 129)),
    "a requested logprob beyond the vocabulary": sampled(logprob_token_ids=pack_i32([50])),
}


def test_a_valid_plan_passes() -> None:
    CHECK(PLAN)


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_an_invalid_plan_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        CHECK(msgspec.structs.replace(PLAN, **change))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), seed=11, max_position_embeddings=128)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((0, 1, 1, True), None),
        ((0, 3, 0, True), "unknown or have no block"),  # three tokens of two
        ((0, 1, 4, True), "unknown or have no block"),
    ],
    ids=["right", "unknown tokens", "no block"],
)
def test_a_plan_that_contradicts_the_batch_is_refused(
    path: Path, row: tuple[int, int, int, bool], text: str | None
) -> None:
    plans, runner = HandMadePlans(0), make_runner(path)
    plan = plans.plan([row], [plans.new(0, [1, 2], 1)], [[]], [0])
    if text is None:
        runner.execute(plan)
        return
    with pytest.raises(BadMessage, match=text):
        runner.execute(plan)


def test_random_columns_are_refused_or_run(path: Path) -> None:
    """A plan with randomly changed numbers either runs or is refused with BadMessage."""
    source, refused, ran = random.Random(7), 0, 0
    columns = (
        "slots",
        "num_new_tokens",
        "num_computed_tokens",
        "output_indices",
        "sampled",
        "block_offsets",
        "block_ids",
    )
    runner = make_runner(path)
    for name, _ in itertools.product(columns, range(40)):
        plans = HandMadePlans(source.randrange(1000))
        plan = plans.plan(
            [(0, 5, 0, True), (3, 2, 0, False)], [plans.new(0, [1] * 5, 2), plans.new(3, [2, 3], 1)], [[], []], [0, 0]
        )
        data = getattr(plan, name)
        numbers = unpack_i32(data[0] if isinstance(data, list) else data).copy()
        if numbers.size:
            numbers[source.randrange(numbers.size)] = source.choice([-(2**31), -1, 0, 1, 3, 7, 2**20, 2**31 - 1])
        else:
            numbers = np.array([source.choice([-1, 0, 63, 64])])
        changed = [pack_i32(numbers)] if isinstance(data, list) else pack_i32(numbers)
        try:
            runner.execute(msgspec.structs.replace(plan, **{name: changed}))
            ran += 1
        except BadMessage:
            refused += 1
    assert ran > 20 and refused > 100
