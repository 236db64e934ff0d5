"""logit_bias adds each number to the logit of its id, and changes no other."""

import torch

from services.worker.logits.logit_bias import LogitBias
from tests.worker.sample_rows import applied, row


def test_each_bias_is_added_to_its_logit() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    expected = logits.clone()
    expected[1, 7] += 0.1
    expected[1, 29] -= 100.0
    expected[3, 0] += 100.0
    changed = applied(LogitBias, logits, [row(), row(bias={7: 0.1, 29: -100.0}), row(), row(bias={0: 100.0})])
    assert torch.equal(changed, expected)
