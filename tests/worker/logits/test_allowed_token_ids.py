"""allowed_token_ids keeps the logits of the listed ids and masks all others, by the shorter of two lists."""

import pytest
import torch

from services.worker.logits.allowed_token_ids import AllowedTokenIds
from tests.worker.sample_rows import applied, row

VOCAB = 20


def expected(logits: torch.Tensor, allowed: list[int]) -> torch.Tensor:
    masked = torch.full_like(logits, float("-inf"))
    masked[allowed] = logits[allowed]
    return masked


@pytest.mark.parametrize(
    "allowed",
    [
        [7],
        [0, 19],
        list(range(10)),
        list(range(11)),
        [one for one in range(20) if one != 4],
        list(range(20)),
        [3, 3, 3],
    ],
    ids=["one", "ends", "half", "more than half", "all but one", "all", "an id three times"],
)
def test_all_other_ids_are_masked(allowed: list[int]) -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    changed = applied(AllowedTokenIds, logits, [row(), row(allowed=allowed), row()])
    assert torch.equal(changed[1], expected(logits[1], allowed))
    assert torch.equal(changed[[0, 2]], logits[[0, 2]])


def test_rows_with_short_and_long_lists_share_a_step() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2))
    lists = [[5], list(range(1, 20)), [2, 3, 4], [0, *range(2, 20)]]
    changed = applied(AllowedTokenIds, logits, [row(allowed=allowed) for allowed in lists])
    assert torch.equal(changed, torch.stack([expected(*pair) for pair in zip(logits, lists, strict=True)]))
