"""Answers with logit_bias, allowed ids, bad words, min_tokens and thinking budgets: the same bits alone, in a crowd,
chunked, preempted, resumed and planned ahead; and the options have their effect."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from engine_core.refusal import RequestRefused
from engine_core.request_check import NewChoice, make_request
from engine_core.step_plan import SamplingParams, pack_i32
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.fakes import ROOT_KEY
from tests.worker.in_process import Answer, InProcess
from tests.worker.sample_rows import budget as thinking

PROMPTS = [[token_id % DEMO_VOCAB_SIZE for token_id in range(3 + row, 700 + 200 * row, 71)] for row in range(8)]
NUM_TOKENS = 24
FEW = range(100, 112)  # so few ids that words of several ids would appear often
ENDS = (101, 103, 2)


def params(**fields: object) -> SamplingParams:
    return SamplingParams(NUM_TOKENS, temperature=0.9, top_p=0.98, logprobs=2, **fields)  # type: ignore[arg-type]


def biased(**biases: float) -> dict[str, bytes]:
    ids = [int(name.removeprefix("id")) for name in biases]
    return {
        "logit_bias_token_ids": pack_i32(ids),
        "logit_biases": np.array(list(biases.values()), dtype="<f4").tobytes(),
    }


ALLOWED = {"allowed_token_ids": pack_i32(list(FEW))}
WORDS = {"bad_words_token_ids": tuple(pack_i32(word) for word in ([105], [100, 102], [104, 106, 108], [108, 108]))}
REQUESTS: dict[str, SamplingParams] = {
    "bias": params(**biased(id7=80.0, id8=80.0, id9=-100.0), frequency_penalty=1.5, repetition_penalty=1.2),
    "allowed ids": params(**ALLOWED, logprob_token_ids=pack_i32([100, 7])),
    "bad words": params(**ALLOWED, **WORDS),
    "min_tokens": params(**ALLOWED, min_tokens=9, eos_token_ids=ENDS[:1], stop_token_ids=ENDS[1:]),
    "min_tokens, ends ignored": params(
        **ALLOWED, min_tokens=9, eos_token_ids=ENDS[:1], stop_token_ids=ENDS[1:], ignore_eos=True
    ),
    "thinking budget": params(thinking_budget=thinking(5, [7, 8], [60, 61, 62], starts_open=True)),
    "thinking budget, greedy": SamplingParams(
        NUM_TOKENS, temperature=0.0, logprobs=2, thinking_budget=thinking(9, [7, 8], [60, 60, 61], starts_open=True)
    ),
    "thinking budget, several sections": params(
        allowed_token_ids=pack_i32([100, 101, 102]), thinking_budget=thinking(2, [100], [60, 101])
    ),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), seed=2, dtype="bfloat16")


def start(path: Path, budget: int = 512, seqs: int = 8, blocks: int | None = None) -> InProcess:
    per_block = 2 * 2 * 8 * 2 * 16 * 2  # two layers of keys and values, 8 tokens, two heads of 16, in bf16
    options = WorkerOptions(
        model=str(path), device="cpu", dtype="bfloat16", max_model_len=64, block_size=8,
        kv_cache_memory_bytes=None if blocks is None else blocks * per_block,
    )  # fmt: skip
    return InProcess(path, options, BatchLimits(1, seqs, budget), prefix_caching=False)


def run(engine: InProcess) -> None:
    while engine.step():
        pass


def ask_all(engine: InProcess) -> list[Answer]:
    answers = [
        engine.add(prompt, sampling, seed)
        for seed, (prompt, sampling) in enumerate(zip(PROMPTS, REQUESTS.values(), strict=True))
    ]
    run(engine)
    return answers


@pytest.fixture(scope="module")
def alone(path: Path) -> list[Answer]:
    """Each request's answer without others."""
    found = []
    for seed, (prompt, sampling) in enumerate(zip(PROMPTS, REQUESTS.values(), strict=True)):
        engine = start(path)
        found.append(engine.add(prompt, sampling, seed))
        run(engine)
    return found


def test_each_option_has_its_effect(alone: list[Answer]) -> None:
    assert all(not answer.error for answer in alone)
    bias, allowed, words, end, ignored, *thoughts = (answer.token_ids for answer in alone)
    assert {7, 8} <= set(bias[:4]) and 9 not in bias
    assert set(allowed) <= set(FEW) and len(set(allowed)) > 5
    pairs, triples = list(itertools.pairwise(words)), list(zip(words, words[1:], words[2:], strict=False))
    assert 105 not in words and (100, 102) not in pairs and (108, 108) not in pairs and (104, 106, 108) not in triples
    assert len(set(words)) > 4
    for answer in (end, ignored):
        assert not set(answer[:9]) & set(ENDS) and len(answer) >= 10
    assert end[-1] in ENDS, "an end comes soon after min_tokens, among twelve ids"
    assert set(end[:-1]) & set(ENDS) == set()
    opened, greedy, sections = thoughts
    assert opened[5:8] == [60, 61, 62] and greedy[9:12] == [60, 60, 61]
    assert len(opened) == len(greedy) == len(sections) == NUM_TOKENS
    first = sections.index(100)
    assert sections[first + 3 : first + 5] == [60, 101]
    second = sections.index(100, first + 5)
    assert sections[second + 3 : second + 5] == [60, 101], "a section of its own"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_word_of_the_answer_is_prevented_where_it_would_be_complete(path: Path, length: int) -> None:
    engine = start(path)
    (plain,) = engine.complete([PROMPTS[0]], params(**ALLOWED), [3])
    whole = plain.token_ids
    begin = next(
        at for at in range(4, NUM_TOKENS) if whole[at : at + length] not in windows(whole[: at + length - 1], length)
    )
    word = whole[begin : begin + length]
    (answer,) = engine.complete([PROMPTS[0]], params(**ALLOWED, bad_words_token_ids=(pack_i32(word),)), [3])
    end = begin + length - 1
    assert answer.token_ids[:end] == whole[:end] and answer.token_ids[end] != whole[end]
    assert word not in windows(answer.token_ids, length)


def windows(tokens: list[int], length: int) -> list[list[int]]:
    return [tokens[at : at + length] for at in range(len(tokens) - length + 1)]


def test_the_end_tokens_that_are_ignored_may_be_sampled_after_min_tokens(path: Path) -> None:
    sampling = params(**ALLOWED, min_tokens=9, eos_token_ids=tuple(FEW), ignore_eos=True)
    engine = start(path)
    with pytest.raises(RequestRefused, match="allowed_token_ids leave no token to sample"):
        engine.add(PROMPTS[0], sampling)  # min_tokens masks them although they are ignored
    free = params(**ALLOWED, eos_token_ids=tuple(FEW), ignore_eos=True)
    (answer,) = engine.complete([PROMPTS[0]], free)
    assert len(answer.token_ids) == NUM_TOKENS


@pytest.mark.parametrize("budget", [512, 9, 16])
def test_neighbours_and_chunks_change_no_bit(path: Path, alone: list[Answer], budget: int) -> None:
    engine = start(path, budget)
    assert ask_all(engine) == alone
    assert budget == 512 or engine.stats.num_chunked_rows > 1


def test_a_preempted_request_goes_on_with_the_same_bits(path: Path, alone: list[Answer]) -> None:
    engine = start(path, blocks=15)
    assert ask_all(engine) == alone
    assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("index", range(len(REQUESTS)), ids=REQUESTS)
def test_a_request_resumed_at_every_token_goes_on_with_the_same_bits(
    path: Path, alone: list[Answer], index: int
) -> None:
    engine, whole, sampling = start(path), alone[index], list(REQUESTS.values())[index]
    for done in range(1, len(whole.token_ids)):
        handle = len(engine.answers)
        engine.answers[handle] = rest = Answer()
        new = NewChoice(handle, 0, PROMPTS[index], whole.token_ids[:done], sampling, index, "", None)
        assert engine.scheduler.add(make_request(new, engine.facts, ROOT_KEY)) is None
        run(engine)
        assert rest.token_ids == whole.token_ids[done:], f"resumed at {done}"
        assert rest.logprobs == whole.logprobs[done:], f"resumed at {done}"


def test_steps_planned_before_the_last_result_change_no_bit(path: Path, alone: list[Answer]) -> None:
    """The last token of a bad word or of a marker is known to the worker alone when the next step is planned."""
    engine = start(path)
    answers = [
        engine.add(prompt, sampling, seed)
        for seed, (prompt, sampling) in enumerate(zip(PROMPTS, REQUESTS.values(), strict=True))
    ]
    launched = []
    while engine.scheduler.has_unfinished:
        plan = engine.scheduler.schedule()
        if plan is not None:
            launched.append(engine.runner.launch(plan))
        if launched and (plan is None or len(launched) == 2):
            engine.take(engine.runner.collect(launched.pop(0)))
    assert answers == alone


def test_a_slot_forgets_the_options_of_its_last_request(path: Path, alone: list[Answer]) -> None:
    engine = start(path, seqs=1)
    plain = SamplingParams(NUM_TOKENS, temperature=0.9, logprobs=2)
    (expected,) = start(path).complete([PROMPTS[0]], plain, [5])
    for seed, (prompt, sampling) in enumerate(zip(PROMPTS, REQUESTS.values(), strict=True)):
        assert engine.complete([prompt], sampling, [seed]) == [alone[seed]]
        assert engine.complete([PROMPTS[0]], plain, [5]) == [expected]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_request_whose_penalty_overflows_ends_alone(path: Path, alone: list[Answer], temperature: float) -> None:
    engine = start(path)
    failed = engine.add(PROMPTS[0], SamplingParams(NUM_TOKENS, temperature=temperature, repetition_penalty=1e-45))
    answers = ask_all(engine)
    assert (failed.param, failed.token_ids) == ("repetition_penalty", [])
    assert answers == alone


def test_a_request_without_a_token_left_ends_alone(path: Path, alone: list[Answer]) -> None:
    engine = start(path)
    words = tuple(pack_i32(list(pair)) for pair in itertools.product([100, 101], repeat=2))
    failed = engine.add(PROMPTS[0], params(allowed_token_ids=pack_i32([100, 101]), bad_words_token_ids=words))
    answers = ask_all(engine)
    assert failed.error.startswith("no token is left to sample") and len(failed.token_ids) == 1
    assert failed.param == "allowed_token_ids"
    assert answers == alone
