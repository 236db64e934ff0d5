"""Penalties against transformers' processors, OpenAI's formula, and each row alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from services.worker import row_groups
from services.worker.logits.penalties import Penalties
from tests.worker.sample_rows import Row, adjusted, applied, row

VOCAB = 97


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_repetition_penalty_is_that_of_transformers() -> None:
    scores, prompt, output = logits_of(1), [3, 4, 4, 90], [7, 7]
    expected = hf.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), scores.clone())
    torch.testing.assert_close(applied(Penalties, scores, [row(prompt, output, repetition_penalty=1.3)]), expected)


def test_presence_and_frequency_count_the_output_alone() -> None:
    """https://platform.openai.com/docs/guides/text-generation: mu - c * frequency - (c > 0) * presence."""
    asked = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    scores = applied(Penalties, torch.zeros(2, VOCAB), [row([5, 5], [7, 7, 8], **asked), row([7], [5], **asked)])
    assert scores[:, [5, 7, 8]].tolist() == [[0.0, -1.0, -0.75], [-0.75, 0.0, 0.0]]


def penalised_alone(logits: torch.Tensor, one: Row) -> torch.Tensor:
    """Penalties on one row's logits [vocab], in the processor's order of operations."""
    sampling = one.sampling
    counts, before = (torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=VOCAB)
                      for ids in (one.output, one.prompt))  # fmt: skip
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
        rows.append(row(prompt or [0], output, **penalties))
    scores = logits_of(seed, len(rows))
    expected = torch.stack([penalised_alone(*pair) for pair in zip(scores, rows, strict=True)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_groups, "group_size", lambda width: size)
        assert torch.equal(adjusted(scores, rows), expected)


@pytest.mark.parametrize("penalty", [1e-45, 1e-46], ids=["subnormal", "zero in float32"])
def test_a_row_beyond_float32_becomes_nan_and_no_other_changes(penalty: float) -> None:
    scores = torch.full((3, VOCAB), 0.5)
    scores[2, 1:] = float("-inf")
    rows = [
        row(prompt=[3], repetition_penalty=1.5, presence_penalty=0.5),
        row(prompt=[3], repetition_penalty=penalty),
        row(prompt=[2], repetition_penalty=1.5),
    ]
    found = applied(Penalties, scores, rows)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], applied(Penalties, scores[[0, 2]], [rows[0], rows[2]]))
    assert found[0].isfinite().all() and found[2].tolist() == [0.5] + [float("-inf")] * (VOCAB - 1)
