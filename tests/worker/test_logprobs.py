"""Logprobs are those of the raw logits, whatever changed them; rows share no bits; requested ids keep their order."""

import pytest
import torch

from services.worker import row_groups
from services.worker.logprobs import ranked
from tests.worker.sample_rows import Row, row, sample

VOCAB = 97


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def asked(index: int) -> Row:
    """Rows without logprobs, with top ones, and with those of requested ids, in turn."""
    requested = {"logprob_ids": [96, 5, 5, index]} if index % 3 == 2 else {}
    return row(temperature=0.0, logprobs=None if index % 5 == 4 else index % 4, **requested if index % 5 != 4 else {})


def test_logprobs_of_many_rows_have_the_bits_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, count = logits_of(5, rows=11), 11
    scores[3, :50] = 1.5
    ids, together = sample(scores, [asked(index) for index in range(count)])
    for size in (1, 4):
        monkeypatch.setattr(row_groups, "group_size", lambda width, size=size: size)
        assert sample(scores, [asked(index) for index in range(count)]) == (ids, together)
    for index, entry in enumerate(together):
        logprobs = torch.log_softmax(scores[index], dim=-1)
        best = sorted(range(VOCAB), key=lambda token_id: (-scores[index, token_id].item(), token_id))
        others = [96, 5, 5, index] if index % 3 == 2 else best[: index % 4]
        if index % 5 == 4:
            assert entry is None
            continue
        assert entry is not None and entry.token_ids == [ids[index], *others]
        assert entry.values == logprobs[entry.token_ids].tolist()


def test_logprobs_are_those_of_the_unmodified_distribution() -> None:
    scores = logits_of(3)
    changes = {"presence_penalty": 1.0, "bias": {4: 50.0}, "allowed": list(range(60)), "bad_words": [[5]]}
    ids, found = sample(scores, [row(temperature=1.5, top_k=5, output=[4], logprobs=3, seed=4, **changes)])
    assert found[0] is not None and ids == [4], "the bias decides"
    expected = torch.log_softmax(scores[0], dim=-1)
    assert found[0].token_ids == [4, *expected.topk(3).indices.tolist()]
    assert found[0].values == pytest.approx(expected[found[0].token_ids].tolist(), abs=1e-6)


def test_more_ids_than_the_vocabulary_may_be_requested() -> None:
    wanted = [0, 1] * 64
    (token_id,), found = sample(torch.zeros(1, 3), [row(temperature=0.0, logprobs=0, logprob_ids=wanted)])
    assert found[0] is not None and found[0].token_ids == [token_id, *wanted]


def test_as_many_top_logprobs_as_the_vocabulary_has_ids() -> None:
    scores = logits_of(8)
    _, found = sample(scores, [row(temperature=0.0, logprobs=VOCAB)])
    assert found[0] is not None and sorted(found[0].token_ids[1:]) == list(range(VOCAB))


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize("levels", [2, 7, 1000])
def test_of_equal_values_the_lowest_ids_come_first(count: int, levels: int) -> None:
    source = torch.Generator().manual_seed(levels)
    values = torch.randint(-levels, levels, (9, 40), generator=source) / 4
    values[0], values[1, ::2], values[2, 5] = 0.0, -0.0, float("inf")
    values[3, 1::3], values[4] = float("-inf"), torch.arange(40.0)
    expected = [sorted(range(40), key=lambda at: (-row[at], at))[:count] for row in values.tolist()]
    assert ranked(values, count).tolist() == expected
