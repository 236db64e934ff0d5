"""Logprobs of prompts equal transformers', and have the same bits alone, in a crowd, cached, chunked and preempted."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.request_check import NewChoice, make_request
from engine_core.step_plan import SamplingParams, unpack_i32
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.fakes import ROOT_KEY
from tests.worker.in_process import Answer, InProcess

PROMPT = [token_id * 37 % DEMO_VOCAB_SIZE for token_id in range(3, 53)]
TOP = 5
PLAIN = SamplingParams(6, temperature=0.9)
SCORED = SamplingParams(6, temperature=0.0, logprobs=1, prompt_logprobs=TOP)


class Scores(NamedTuple):
    """Of all prompt tokens but the first."""

    ids: npt.NDArray[np.int32]  # [tokens, 1 + TOP]
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]  # [tokens]


def scores(answer: Answer, first: int = 1) -> Scores:
    assert not answer.error
    parts = answer.prompt_logprobs
    ends = [first, *(one.start_index + one.num_tokens for one in parts)]
    assert [one.start_index for one in parts] == ends[:-1], "each token once, in order"
    width = parts[0].width
    return Scores(
        np.concatenate([unpack_i32(one.token_ids) for one in parts]).reshape(-1, width),
        np.concatenate([np.frombuffer(one.logprobs, "<f4") for one in parts]).reshape(-1, width),
        np.concatenate([unpack_i32(one.ranks) for one in parts]),
    )


def assert_equal(found: Scores, expected: Scores) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), seed=4, dtype="bfloat16")


def start(path: Path, budget: int = 512, dtype: str = "bfloat16", *, caching: bool = False) -> InProcess:
    options = WorkerOptions(model=str(path), device="cpu", dtype=dtype, max_model_len=64, block_size=8)
    return InProcess(path, options, BatchLimits(1, 8, budget), prefix_caching=caching)


def run(engine: InProcess) -> None:
    while engine.step():
        pass


@pytest.fixture(scope="module")
def alone(path: Path) -> Answer:
    engine = start(path)
    answer = engine.add(PROMPT, SCORED)
    run(engine)
    return answer


def test_they_are_transformers_log_softmax(path: Path) -> None:
    engine = start(path, dtype="float32")
    answer = engine.add(PROMPT, SCORED)
    run(engine)
    found = scores(answer)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([PROMPT])).logits[0, :-1].float(), dim=-1)
    ids = torch.from_numpy(found.ids.astype(np.int64))
    assert ids[:, 0].tolist() == PROMPT[1:]
    assert (torch.from_numpy(found.logprobs.copy()) - expected.gather(1, ids)).abs().max() < 1e-4
    top = expected.topk(TOP)
    assert (torch.from_numpy(found.logprobs[:, 1:].copy()) - top.values).abs().max() < 1e-4
    own = expected.gather(1, ids[:, :1])
    assert (torch.from_numpy(found.ranks) - 1 - (expected > own).sum(1)).abs().max() <= 1, "but for rounding"


def test_the_rank_is_that_among_the_top_ones(alone: Answer) -> None:
    found = scores(alone)
    for ids, rank in zip(found.ids, found.ranks, strict=True):
        assert (rank <= TOP) == (ids[0] in ids[1:]) and (rank > TOP or ids[rank] == ids[0])
    assert (np.diff(found.logprobs[:, 1:]) <= 0).all()


@pytest.mark.parametrize("budget", [8, 9, 33])
def test_chunks_change_no_bit(path: Path, alone: Answer, budget: int) -> None:
    engine = start(path, budget)
    answer = engine.add(PROMPT, SCORED)
    run(engine)
    assert len(answer.prompt_logprobs) > 1
    assert_equal(scores(answer), scores(alone))
    assert answer.token_ids == alone.token_ids and answer.logprobs == alone.logprobs


def test_others_in_the_batch_change_no_bit(path: Path, alone: Answer) -> None:
    engine = start(path, 64)
    first = engine.add(PROMPT, SCORED)
    others = [engine.add(PROMPT[row:], SCORED if row % 2 else PLAIN) for row in range(1, 7)]
    run(engine)
    assert_equal(scores(first), scores(alone))
    assert first.token_ids == alone.token_ids and first.logprobs == alone.logprobs
    plain = start(path, 64)
    for row, other in enumerate(others, 1):
        again = plain.add(PROMPT[row:], SCORED if row % 2 else PLAIN)
        run(plain)
        assert other.token_ids == again.token_ids
        if row % 2:
            assert_equal(scores(other), scores(again))


def test_a_cached_prefix_changes_no_bit(path: Path, alone: Answer) -> None:
    engine = start(path, caching=True)
    engine.add(PROMPT, SamplingParams(1))
    run(engine)
    answer = engine.add(PROMPT, SCORED)
    run(engine)
    assert_equal(scores(answer), scores(alone))
    assert answer.token_ids == alone.token_ids


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_preemption_changes_no_bit(path: Path, alone: Answer, steps: int) -> None:
    engine = start(path, 16, caching=True)
    answer = engine.add(PROMPT, SCORED)
    for _ in range(steps):
        engine.step()
    if engine.scheduler.running:
        engine.scheduler._preempt(engine.scheduler.running[0])
    run(engine)
    assert_equal(scores(answer), scores(alone))
    assert answer.token_ids == alone.token_ids


@pytest.mark.parametrize("received", [0, 1, 2, 8, 9, 31, 49])
def test_a_resume_brings_the_rest(path: Path, alone: Answer, received: int) -> None:
    engine = start(path, 16)
    engine.answers[0] = answer = Answer()
    new = NewChoice(0, 0, PROMPT, [], SCORED, 0, "", None, prompt_logprobs_from=received)
    assert engine.scheduler.add(make_request(new, engine.facts, ROOT_KEY)) is None
    run(engine)
    first = max(1, received)
    assert_equal(scores(answer, first), Scores(*(column[first - 1 :] for column in scores(alone))))
    assert answer.token_ids == alone.token_ids


def test_a_plan_behind_another_changes_no_bit(path: Path, alone: Answer) -> None:
    """Two plans in flight: the next one is launched before the result of the one before is taken."""
    engine = start(path, 16)
    answer = engine.add(PROMPT, SCORED)
    launched = []
    while engine.scheduler.has_unfinished:
        plan = engine.scheduler.schedule() if len(launched) < 2 else None
        if plan is not None:
            launched.append(engine.runner.launch(plan))
        else:
            engine.take(engine.runner.collect(launched.pop(0)))
    assert_equal(scores(answer), scores(alone))
    assert answer.token_ids == alone.token_ids
