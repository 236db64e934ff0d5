"""The sampler against transformers' logits processors; ties, noise, logprobs, and batch invariance."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from kernels import sampling
from kernels.cpu.library import load, runnable_variants
from kernels.cpu.ops import CpuOps
from kernels.interface import DRAW, Ops
from kernels.sampling import apply_min_p_top_k_top_p
from kernels.torch_ops import TorchOps
from services.worker.sampler import FAULTS
from tests.worker.sample_rows import row, sample, sampled

VOCAB = 97


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def draw_of(**sampling: object) -> np.void:
    drawn: np.void = np.array([row(**sampling).draw], dtype=DRAW)[0]
    return drawn


@pytest.fixture(params=["torch", *runnable_variants()])
def ops(request: pytest.FixtureRequest) -> Ops:
    return TorchOps() if request.param == "torch" else CpuOps(load(request.param), 2)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 1000), top_k=st.integers(1, VOCAB), top_p=st.floats(0.05, 1.0), min_p=st.floats(0.0, 0.5))
def test_filters_keep_what_transformers_keeps(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    scores = logits_of(seed).double()
    expected = scores.clone()
    ids = torch.zeros(1, 1, dtype=torch.long)
    if min_p > 0:
        expected = hf.MinPLogitsWarper(min_p)(ids, expected)
    expected = hf.TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1:
        expected = hf.TopPLogitsWarper(top_p)(ids, expected)
    actual = scores[0].clone()
    apply_min_p_top_k_top_p(actual, draw_of(top_k=top_k, top_p=top_p, min_p=min_p))
    assert torch.equal(torch.isfinite(actual), torch.isfinite(expected[0]))


def test_ties_go_to_the_lowest_token_id(ops: Ops) -> None:
    flat = torch.zeros(1, VOCAB)
    ids, logprobs = sample(flat, [row(temperature=0.0, logprobs=4)], ops)
    assert ids == [0]
    assert logprobs[0] is not None and logprobs[0].token_ids == [0, 0, 1, 2, 3]
    kept = flat[0].double()
    apply_min_p_top_k_top_p(kept, draw_of(top_k=3))
    assert torch.nonzero(torch.isfinite(kept)).flatten().tolist() == [0, 1, 2]
    kept = flat[0].double()
    apply_min_p_top_k_top_p(kept, draw_of(top_p=0.5))
    assert torch.nonzero(torch.isfinite(kept)).flatten().tolist() == list(range(49))


DEAD: dict[str, dict[str, object]] = {
    "bad words and allowed ids": {"allowed": [3, 4], "bad_words": [[3], [4]]},
    "end tokens alone, too early": {"allowed": [9], "eos_token_ids": (9,), "min_tokens": 1},
    "every id is a bad word": {"bad_words": [[token_id] for token_id in range(VOCAB)]},
}
FILTERS: list[dict[str, object]] = [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}]


@pytest.mark.parametrize("asked", DEAD.values(), ids=DEAD)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_row_without_a_token_left_has_a_fault_and_disturbs_no_other(
    ops: Ops, asked: dict[str, object], filters: dict[str, object]
) -> None:
    scores = logits_of(4, rows=3)
    scores[2, 5] = float("nan")
    result = sampled(scores, [row(seed=1, **filters), row(**asked, **filters), row(bias={1: 1.0}, **filters)], ops)
    assert [FAULTS[fault].message for fault in result.faults.tolist()] == [
        "",
        "no token is left to sample: allowed_token_ids, bad_words, min_tokens and the grammar exclude all of them",
        "the model's logits are NaN or infinite",
    ]
    assert ((result.token_ids >= 0) & (result.token_ids < VOCAB)).all(), (
        "they are stored, and looked up by the next step"
    )
    assert [result.token_ids[0].item()] == sample(scores[:1], [row(seed=1, **filters)], ops)[0]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_row_that_a_penalty_makes_infinite_has_a_fault_and_disturbs_no_other(
    ops: Ops, filters: dict[str, object]
) -> None:
    scores = logits_of(4, rows=3)
    rows = [row(seed=1, **filters), row(prompt=list(range(VOCAB)), repetition_penalty=1e-45, **filters)]
    spoilt = row(prompt=[5], allowed=[1, 2], repetition_penalty=1e-46, **filters)
    result = sampled(scores, [*rows, spoilt], ops)
    assert [FAULTS[fault].cause for fault in result.faults.tolist()] == ["", "penalty_overflow", "penalty_overflow"]
    assert ((result.token_ids >= 0) & (result.token_ids < VOCAB)).all()
    assert [result.token_ids[0].item()] == sample(scores[:1], rows[:1], ops)[0]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_a_row_does_not_depend_on_the_others(ops: Ops, order: list[int]) -> None:
    scores = logits_of(9, rows=6)
    rows = [
        row(temperature=0.0, logprobs=2, bad_words=[[7], [1, 2]], output=[1]),
        row(temperature=1.0, seed=1, allowed=list(range(4, 40)), bias={5: 2.0}),
        row(temperature=0.7, top_p=0.8, seed=2, output=[3, 3]),
        row(temperature=1.3, top_k=9, min_p=0.01, seed=2**64 - 1, choice=5),
        row(temperature=1.0, repetition_penalty=1.4, frequency_penalty=1.0, prompt=[2, 3], output=[3], seed=3),
        row(temperature=0.0, presence_penalty=2.0, output=[int(scores[5].argmax())]),
    ]
    together, logprobs = sample(scores[order], [rows[index] for index in order], ops)
    for place, index in enumerate(order):
        alone, alone_logprobs = sample(scores[index : index + 1], [rows[index]], ops)
        assert (together[place], logprobs[place]) == (alone[0], alone_logprobs[0])


def test_samples_follow_the_distribution(ops: Ops) -> None:
    """Chi-squared over 20,000 seeds; the bound is the 0.999 quantile with 7 degrees of freedom."""
    scores = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])
    count, temperature = 20_000, 0.8
    rows = [row(temperature=temperature, seed=seed) for seed in range(count)]
    ids, _ = sample(scores.expand(count, -1).contiguous(), rows, ops)
    expected = torch.softmax(scores / temperature, dim=-1) * count
    found = torch.bincount(torch.tensor(ids), minlength=8)
    assert ((found - expected).square() / expected).sum().item() < 24.32


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocab=st.integers(1, 300),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 5.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 20, 299]),
    top_p=st.sampled_from([1e-9, 0.3031, 0.9077, 0.9999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 1.0]),
    levels=st.sampled_from([1, 3, 1000]),
    masked=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_instruction_set_draws_what_the_twin_draws(
    ops: Ops,
    vocab: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    levels: int,
    masked: bool,
    seed: int,
) -> None:
    """With many ties and masked tokens."""
    source = torch.Generator().manual_seed(seed % 2**63)
    raw = torch.randint(-levels, levels, (4, vocab), generator=source) * (3 / levels)
    logits = raw.clone()
    if masked:
        logits[:, torch.randperm(vocab, generator=source)[: vocab // 2]] = float("-inf")
    if vocab > 2:
        raw[1, vocab // 2], raw[2, -1], raw[3, 0] = float("nan"), float("inf"), float("-inf")
    draws = np.array([(temperature, top_p, min_p, top_k, seed, 3, index) for index in range(4)], dtype=DRAW)
    expected, actual = sampling.draw(logits, raw, draws), ops.draw(logits, raw, draws)
    assert actual[1].tolist() == expected[1].tolist() == [True, *[vocab <= 2] * 3]
    assert torch.equal(actual[0][actual[1]], expected[0][expected[1]])


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.3, 3), (0.9, 9)])
def test_at_the_edge_of_top_p_only_a_rounding_decides(ops: Ops, top_p: float, num_kept: int) -> None:
    """Ten equal probabilities add up to exactly top_p: rounding keeps one token more or less, always a first part."""
    logits = torch.zeros(300, 10)
    draws = np.array([(1.0, top_p, 0.0, 0, 7, 0, index) for index in range(len(logits))], dtype=DRAW)
    tokens = set(ops.draw(logits, logits, draws)[0].tolist())
    assert tokens == set(range(len(tokens))) and abs(len(tokens) - num_kept) <= 1
