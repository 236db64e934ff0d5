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
from services.worker import sampler
from services.worker.sampler import AdjustedRow, _adjust_logits, _apply_penalties
from tests.worker.sample_rows import row, sample

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


def test_repetition_penalty_is_that_of_transformers() -> None:
    scores, prompt, output = logits_of(1), [3, 4, 4, 90], [7, 7]
    expected = hf.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), scores.clone())
    _apply_penalties(scores, [row(prompt, output, repetition_penalty=1.3).adjusted])
    torch.testing.assert_close(scores, expected)


def test_presence_and_frequency_count_the_output_alone() -> None:
    """https://platform.openai.com/docs/guides/text-generation: mu - c * frequency - (c > 0) * presence."""
    scores = torch.zeros(2, VOCAB)
    asked = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    _apply_penalties(scores, [row([5, 5], [7, 7, 8], **asked).adjusted, row([7], [5], **asked).adjusted])
    assert scores[:, [5, 7, 8]].tolist() == [[0.0, -1.0, -0.75], [-0.75, 0.0, 0.0]]


def penalised_alone(logits: torch.Tensor, one: AdjustedRow) -> torch.Tensor:
    """Penalties on one row's logits [vocab], in the sampler's order of operations."""
    sampling = one.sampling
    counts, before = (torch.bincount(ids, minlength=VOCAB) for ids in (one.output_token_ids, one.prompt_token_ids))
    seen = (counts > 0) | (before > 0)
    weakened = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
    logits = torch.where(seen, weakened, logits) - sampling.frequency_penalty * counts
    return logits - sampling.presence_penalty * (counts > 0)


@settings(deadline=None, max_examples=30)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from([1.0, 1.3, 0.7]), st.sampled_from([0.0, 0.3, -1.1]), st.sampled_from([0.0, 0.7])),
        min_size=1, max_size=7,
    ),
    size=st.sampled_from([1, 2, 100]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_penalties_of_many_rows_have_the_bits_of_each_alone(
    asked: list[tuple[float, float, float]], size: int, seed: int
) -> None:
    """For any group size, and prompts and outputs of any length."""
    source = torch.Generator().manual_seed(seed)
    rows = []
    for repetition, presence, frequency in asked:
        prompt, output = (
            torch.randint(0, VOCAB, (length,), generator=source).tolist()
            for length in torch.randint(0, 200, (2,), generator=source).tolist()
        )
        penalties = {"presence_penalty": presence, "frequency_penalty": frequency, "repetition_penalty": repetition}
        rows.append(row(prompt or [0], output, **penalties).adjusted)
    scores = logits_of(seed, len(rows))
    expected = torch.stack([penalised_alone(*pair) for pair in zip(scores, rows, strict=True)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampler, "group_size", lambda width: size)
        assert torch.equal(_adjust_logits(scores, dict(enumerate(rows))), expected)


def test_logprobs_of_many_rows_have_the_bits_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, count = logits_of(5, rows=11), 11
    scores[3, :50] = 1.5
    ids, together = sample(scores, [row(temperature=0.0, logprobs=index % 4) for index in range(count)])
    for size in (1, 4):
        monkeypatch.setattr(sampler, "group_size", lambda width, size=size: size)
        assert sample(scores, [row(temperature=0.0, logprobs=index % 4) for index in range(count)]) == (ids, together)
    for index, entry in enumerate(together):
        logprobs = torch.log_softmax(scores[index], dim=-1)
        best = sorted(range(VOCAB), key=lambda token_id: (-scores[index, token_id].item(), token_id))
        assert entry is not None and entry.token_ids == [ids[index], *best[: index % 4]]
        assert entry.values == logprobs[entry.token_ids].tolist()


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


def test_no_token_that_ends_the_answer_before_min_tokens(ops: Ops) -> None:
    scores = torch.zeros(1, VOCAB)
    scores[0, [10, 20]] = torch.tensor([9.0, 8.0])
    stops = {"eos_token_ids": (10,), "stop_token_ids": (20,), "min_tokens": 2, "temperature": 0.0}
    assert sample(scores, [row(output=[5], **stops)], ops)[0] == [0]
    assert sample(scores, [row(output=[5, 6], **stops)], ops)[0] == [10]


def test_logprobs_are_those_of_the_unmodified_distribution() -> None:
    scores = logits_of(3)
    ids, found = sample(scores, [row(temperature=1.5, top_k=5, presence_penalty=1.0, logprobs=3, seed=4)])
    assert found[0] is not None
    expected = torch.log_softmax(scores[0], dim=-1)
    assert found[0].token_ids[0] == ids[0]
    assert found[0].token_ids[1:] == expected.topk(3).indices.tolist()
    assert found[0].values == pytest.approx(expected[found[0].token_ids].tolist(), abs=1e-6)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)))
def test_a_row_does_not_depend_on_the_others(ops: Ops, order: list[int]) -> None:
    scores = logits_of(9, rows=6)
    rows = [
        row(temperature=0.0, logprobs=2),
        row(temperature=1.0, seed=1),
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
