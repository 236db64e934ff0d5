"""Logits and draws, and the comparison of the kernel's tokens with the twin's: for the tests here and for tests/gpu.

Needs torch, numpy and Triton alone.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from kernels import sampling
from kernels.gpu import sample
from kernels.interface import DRAW, Draws

# (temperature, top_p, min_p, top_k): every filter alone, all in combination, and those that leave all in or one. No
# top_p is a share that some number of equal logits makes up, for there a rounding decides.
FILTERS = [
    (0.0, 1.0, 0.0, 0), (0.0, 0.5, 0.1, 3), (1.0, 1.0, 0.0, 0), (0.7, 1.0, 0.0, -1), (5.0, 1.0, 0.0, 0),
    (1.0, 0.9031, 0.0, 0), (0.3, 0.5077, 0.0, 0), (1.0, 1e-9, 0.0, 0), (1.0, 0.9999999, 0.0, 0),
    (1.0, 1.0, 0.02, 0), (1.0, 1.0, 1.0, 0), (0.05, 1.0, 1e-9, 0),
    (1.0, 1.0, 0.0, 1), (1.0, 1.0, 0.0, 2), (0.7, 1.0, 0.0, 50), (2.0, 1.0, 0.0, 10**6), (1.0, 1.0, 0.0, 1000),
    (0.6, 0.9531, 0.0, 20), (1.0, 0.9031, 0.0, 50), (1.0, 0.3031, 0.05, 0), (1.3, 1.0, 0.01, 7),
    (0.9, 0.8077, 0.001, 30),
    (1.0, 0.9999999, 1.0, 5), (1.0, 0.9931, 0.0, 3000),
]  # fmt: skip


# So hot that every token that is kept may come: what is missing from them, or too many, shows in a few rows.
HOT = [(60.0, 1.0, 0.0, 20), (60.0, 0.7031, 0.0, 40), (60.0, 0.5031, 0.0, 0), (60.0, 1.0, 0.95, 0)]


def draws_of(kinds: Iterable[tuple[float, float, float, int]], seed: int = 0) -> Draws:
    """One row of each kind, with seeds of 64 bits."""
    return np.array(
        [
            (*kind, (seed + 1) * (row + 1) * 0x9E3779B97F4A7C15 % 2**64, row % 5, 7 * row)
            for row, kind in enumerate(kinds)
        ],
        dtype=DRAW,
    )


def logits_of(rows: int, vocab: int, levels: int | None, masked: bool, seed: int) -> tuple[Tensor, Tensor]:
    """(logits, raw): normal, or with `levels` different values only, so with many ties; a part of them masked."""
    source = torch.Generator().manual_seed(seed)
    raw = 3 * torch.randn(rows, vocab, generator=source)
    if levels is not None:
        raw = torch.randint(-levels, levels + 1, (rows, vocab), generator=source) * (4 / levels)
    logits = raw.clone()
    if masked:
        logits[torch.rand(rows, vocab, generator=source) < 0.3] = float("-inf")
    return logits, raw


def check_draw(device: torch.device, logits: Tensor, raw: Tensor, draws: Draws) -> None:
    """The twin's tokens, on the CPU, in every row that is healthy; an id of the vocabulary in the others."""
    expected, fine = sampling.draw(logits, raw, draws)
    actual, healthy = (found.cpu() for found in sample.draw(logits.to(device), raw.to(device), draws))
    assert actual.dtype == torch.int64 and torch.equal(healthy, fine), "rows are healthy that are not, or the reverse"
    assert ((actual >= 0) & (actual < logits.shape[1])).all(), "a token that is none"
    wrong = ((actual != expected) & fine).nonzero().flatten().tolist()
    assert not wrong, f"row {wrong[0]} of {len(wrong)} wrong ones: {draws[wrong[0]]}"
