"""Logits, draws, and the check of the draw kernel against its twin, for the tests here and for loadtest/gpu.

Needs only torch, numpy and Triton.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from kernels import sampling
from kernels.gpu import sample
from kernels.interface import DRAW, Draws

# (temperature, top_p, min_p, top_k): each filter alone, combinations, and filters that keep all tokens or one. No top_p
# is a sum of equal probabilities, because rounding would decide there.
FILTERS = [
    (0.0, 1.0, 0.0, 0), (0.0, 0.5, 0.1, 3), (1.0, 1.0, 0.0, 0), (0.7, 1.0, 0.0, -1), (5.0, 1.0, 0.0, 0),
    (1.0, 0.9031, 0.0, 0), (0.3, 0.5077, 0.0, 0), (1.0, 1e-9, 0.0, 0), (1.0, 0.9999999, 0.0, 0),
    (1.0, 1.0, 0.02, 0), (1.0, 1.0, 1.0, 0), (0.05, 1.0, 1e-9, 0),
    (1.0, 1.0, 0.0, 1), (1.0, 1.0, 0.0, 2), (0.7, 1.0, 0.0, 50), (2.0, 1.0, 0.0, 10**6), (1.0, 1.0, 0.0, 1000),
    (0.6, 0.9531, 0.0, 20), (1.0, 0.9031, 0.0, 50), (1.0, 0.3031, 0.05, 0), (1.3, 1.0, 0.01, 7),
    (0.9, 0.8077, 0.001, 30),
    (1.0, 0.9999999, 1.0, 5), (1.0, 0.9931, 0.0, 3000),
]  # fmt: skip


# High temperatures: every kept token can be drawn, so a missing or extra token shows within a few rows.
HOT = [(60.0, 1.0, 0.0, 20), (60.0, 0.7031, 0.0, 40), (60.0, 0.5031, 0.0, 0), (60.0, 1.0, 0.95, 0)]


def draws_of(kinds: Iterable[tuple[float, float, float, int]], seed: int = 0) -> Draws:
    """Returns one DRAW record for each kind (temperature, top_p, min_p, top_k), with 64-bit seeds."""
    return np.array(
        [
            (*kind, (seed + 1) * (row + 1) * 0x9E3779B97F4A7C15 % 2**64, row % 5, 7 * row)
            for row, kind in enumerate(kinds)
        ],
        dtype=DRAW,
    )


def logits_of(rows: int, vocab: int, levels: int | None, masked: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Returns (logits, raw), each [rows, vocab]: normal, or with `levels` only few distinct values (many ties). With
    `masked`, 30% of `logits` are -inf."""
    source = torch.Generator().manual_seed(seed)
    raw = 3 * torch.randn(rows, vocab, generator=source)
    if levels is not None:
        raw = torch.randint(-levels, levels + 1, (rows, vocab), generator=source) * (4 / levels)
    logits = raw.clone()
    if masked:
        logits[torch.rand(rows, vocab, generator=source) < 0.3] = float("-inf")
    return logits, raw


def check_draw(device: torch.device, logits: Tensor, raw: Tensor, draws: Draws) -> None:
    """Asserts that the kernel finds the same rows healthy (all raw logits finite) as its twin on the CPU, and draws the
    same tokens for them. The token of another row must be a valid id."""
    expected, fine = sampling.draw(logits, raw, draws)
    actual, healthy = (found.cpu() for found in sample.draw(logits.to(device), raw.to(device), draws))
    assert actual.dtype == torch.int64 and torch.equal(healthy, fine), "health of a row differs"
    assert ((actual >= 0) & (actual < logits.shape[1])).all(), "a token id outside the vocabulary"
    wrong = ((actual != expected) & fine).nonzero().flatten().tolist()
    assert not wrong, f"row {wrong[0]} of {len(wrong)} wrong ones: {draws[wrong[0]]}"
