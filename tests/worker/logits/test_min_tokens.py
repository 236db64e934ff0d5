"""min_tokens masks what would end the answer, until it has so many tokens."""

import pytest
import torch

from services.worker.logits.min_tokens import MinTokens
from tests.worker.sample_rows import applied, row

STOPS = {"eos_token_ids": (10,), "stop_token_ids": (20, 21), "min_tokens": 2}


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize(("output", "masked"), [([], [10, 20, 21]), ([5], [10, 20, 21]), ([5, 6], []), ([5] * 9, [])])
def test_no_token_that_ends_the_answer_before_min_tokens(
    output: list[int], masked: list[int], ignore_eos: bool
) -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    expected = logits.clone()
    expected[1, masked] = float("-inf")
    changed = applied(MinTokens, logits, [row(), row(output=output, **STOPS, ignore_eos=ignore_eos), row()])
    assert torch.equal(changed, expected)


def test_without_an_end_nothing_is_masked() -> None:
    assert torch.equal(applied(MinTokens, torch.zeros(1, 5), [row(min_tokens=3)]), torch.zeros(1, 5))
