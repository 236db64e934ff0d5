"""Ops of torch's own products: attention in chunks is whole attention, and a mixture is the sum of its experts."""

import pytest
import torch

from kernels import torch_ops
from kernels.interface import AttentionInputs
from kernels.program import Activate, Mix, Place
from kernels.torch_ops import TorchOps
from tests.kernels.attention_cases import attention_case
from tests.kernels.cases import randn

CPU = torch.device("cpu")


@pytest.mark.parametrize("scores", [1, 300, 5000])
def test_attention_in_chunks_of_queries_is_the_whole(monkeypatch: pytest.MonkeyPatch, scores: int) -> None:
    case = attention_case(CPU, torch.float32, [(30, 20), (1, 7)], 2, 2, 16, 4, window=11, soft_cap=1.5, with_sinks=True)
    starts, lens = case.places()
    inputs = AttentionInputs(torch.empty(0), case.tables, starts, lens, *case.bounds())
    monkeypatch.setattr(torch_ops, "SCORES", scores)
    found = TorchOps().paged_attention(case.query, (case.keys, case.values), inputs, case.scale, *case.traits())
    torch.testing.assert_close(found, case.twin())


def test_a_mixture_is_the_weighted_sum_of_each_tokens_experts() -> None:
    ops, x, added = TorchOps(), randn(CPU, torch.float32, 3, 8), randn(CPU, torch.float32, 3, 8, seed=9)
    inner, down = randn(CPU, torch.float32, 4, 6, 8, seed=1), randn(CPU, torch.float32, 4, 8, 3, seed=2)
    biases = randn(CPU, torch.float32, 4, 6, seed=3), randn(CPU, torch.float32, 4, 8, seed=4)
    experts = [ops.experts([[each] for each in weights]) for weights in (inner, down)]
    form = Activate("silu", gated=True)
    chosen = torch.tensor([[2, 0], [2, 3], [0, 2]]).int(), torch.tensor([[0.5, 0.25], [1.0, 0.1], [0.3, 0.6]])
    found = ops.mix(x, chosen, Mix(Place.NORMED, experts[0], form, experts[1], *biases, adds=True), added)
    for token in range(3):
        total = added[token].clone()
        for expert, weight in zip(chosen[0][token].tolist(), chosen[1][token].tolist(), strict=True):
            gate, up = (inner[expert] @ x[token] + biases[0][expert]).chunk(2)
            total += weight * (down[expert] @ (gate * gate.sigmoid() * up) + biases[1][expert])
        torch.testing.assert_close(found[token], total)
