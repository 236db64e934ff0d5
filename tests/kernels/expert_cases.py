"""Comparisons of routers and experts with their twins, and of tokens alone with tokens in a crowd, on any Ops."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.program import Activate, Mix, Place, Route
from kernels.torch_ops import TorchOps
from tests.kernels.cases import randn, share_of, tolerance

TWIN = TorchOps()


@dataclass(frozen=True)
class ExpertCase:
    """A layer's experts, `tokens` [tokens, hidden] and router `logits` [tokens, experts]."""

    tokens: Tensor
    logits: Tensor
    inner: Tensor
    down: Tensor
    biases: tuple[Tensor, Tensor] | tuple[None, None]
    route: Route
    form: Activate
    added: Tensor | None

    def mix(self, ops: Any) -> Mix:
        dtype = self.tokens.dtype
        inner, down = (ops.experts([[one] for one in each], dtype) for each in (self.inner, self.down))
        return Mix(Place.NORMED, inner, self.form, down, *self.biases, adds=self.added is not None)

    def result(self, ops: Any, mix: Mix | None = None) -> Tensor:
        chosen = ops.route(self.logits.clone(), self.route)
        found: Tensor = ops.mix(self.tokens, chosen, mix or self.mix(ops), self.added)
        return found

    def part(self, rows: slice) -> "ExpertCase":
        added = None if self.added is None else self.added[rows]
        return replace(self, tokens=self.tokens[rows], logits=self.logits[rows], added=added)


def expert_case(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    experts: int,
    top_k: int,
    hidden: int,
    size: int,
    sigmoid: bool = False,
    groups: int = 1,
    kept_groups: int = 1,
    with_bias: bool = False,
    adds: bool = False,
    kind: str = "silu",
    gated: bool = True,
    seed: int = 0,
) -> ExpertCase:
    """Returns random inputs. With logits of four levels, some experts are chosen by many tokens and some by none, and
    equal scores are common."""
    inner_size = size * (2 if gated else 1)
    biases = (
        (
            randn(device, torch.float32, experts, inner_size, seed=seed + 5),
            randn(device, torch.float32, experts, hidden, seed=seed + 6),
        )
        if with_bias
        else (None, None)
    )
    levels = randn(device, torch.float32, experts, seed=seed) + randn(
        device, torch.float32, tokens, experts, seed=seed + 1
    )
    correction = randn(device, torch.float32, experts, seed=seed + 7) / 4 if sigmoid else None
    router = TWIN.matrix(torch.zeros(experts, 1))  # its product is not part of the case
    route = Route(Place.NORMED, router, top_k, None, correction, sigmoid, True, groups, kept_groups, 1.5)
    return ExpertCase(
        randn(device, dtype, tokens, hidden, seed=seed + 2),
        levels.round(),
        randn(device, dtype, experts, inner_size, hidden, seed=seed + 3) * hidden**-0.5,
        randn(device, dtype, experts, hidden, size, seed=seed + 4) * size**-0.5,
        biases,
        route,
        Activate(kind, gated, alpha=1.7, limit=1.2),
        randn(device, dtype, tokens, hidden, seed=seed + 8) if adds else None,
    )  # fmt: skip


def check_experts(ops: Any, device: torch.device, dtype: torch.dtype, **shape: Any) -> float:
    """Compares the choice and the weights of experts, and their sum, with the twins."""
    case = expert_case(device, dtype, **shape)
    ids, weights = ops.route(case.logits.clone(), case.route)
    expected, shares = TWIN.route(case.logits.clone(), case.route)
    assert torch.equal(ids, expected), "other experts are chosen"
    actual, twin = case.result(ops), case.result(TWIN)
    # Sums of weighted parts near 1 cancel; the parts have been rounded twice, at the activation and at their end.
    floor = 4.0 * (1.0 + case.route.scale)
    return max(share_of(weights, shares, tolerance(shares)), share_of(actual, twin, 2 * tolerance(twin, floor)))


def check_tokens_alone(ops: Any, device: torch.device, dtype: torch.dtype, **shape: Any) -> float:
    """Asserts that a token's sum has the same bits alone, in parts of the crowd, and in the crowd. Returns 0.0."""
    case = expert_case(device, dtype, **shape)
    mix = case.mix(ops)
    whole, count = case.result(ops, mix), len(case.tokens)
    for size in {1, 3, count // 2 + 1}:
        for first in range(0, count, size):
            rows = slice(first, first + size)
            assert torch.equal(case.part(rows).result(ops, mix), whole[rows]), f"{size} tokens from {first} differ"
    return 0.0
