"""The check of a bitmask kernel against its twin."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernels import reference

Apply = Callable[[Tensor, Tensor, Tensor], None]


def check_bitmask(apply: Apply, device: torch.device, rows: int, vocab: int, density: float, seed: int) -> None:
    """Asserts that the kernel changes what its twin changes, in some of `rows` rows in any order; with NaN and infinite
    logits. `density`: the share of tokens that may follow. Bits beyond the vocabulary are set or not."""
    source = np.random.default_rng(seed)
    logits = torch.from_numpy(source.standard_normal((rows, vocab)).astype(np.float32))
    logits[source.random(logits.shape) < 0.1] = float("nan")
    logits[source.random(logits.shape) < 0.1] = float("inf")
    chosen = source.permutation(rows)[: source.integers(1, rows + 1)]
    bits = source.random((len(chosen), -(-vocab // 32) * 32)) < density
    bits[source.random(len(chosen)) < 0.2] = True
    masks = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    expected = logits.clone()
    expected[torch.from_numpy(chosen)] = torch.where(
        torch.from_numpy(bits[:, :vocab]), logits[torch.from_numpy(chosen)], float("-inf")
    )
    actual = logits.to(device)
    apply(actual, masks.to(device), torch.from_numpy(chosen).to(device))
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    twin = logits.clone()
    reference.apply_bitmask(twin, masks, torch.from_numpy(chosen))
    torch.testing.assert_close(twin, expected, rtol=0, atol=0, equal_nan=True)
