"""Gumbel noise from Philox4x32-10 (Salmon et al., SC 2011), a counter-based random number generator without state.

The Philox key is the request's seed; the counter is (vocabulary id / 4, token index, choice, purpose). So the noise of
a token does not depend on earlier draws, on the rest of the batch, or on whether the request was resumed.
"""

import torch
from torch import Tensor

from kernels.transfer import to_device

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
PURPOSE_SAMPLE = 0


def philox4x32(counter: list[Tensor], key: list[Tensor]) -> list[Tensor]:
    """Returns four 32-bit words per counter. A counter has four words, a key two.

    All tensors are int64 with values below 2**32, broadcast together.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The products wrap at 2**64, which keeps all bits that are used.
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            ((product1 >> 32) & MASK) ^ c1 ^ k0,
            product1 & MASK,
            ((product0 >> 32) & MASK) ^ c3 ^ k1,
            product0 & MASK,
        )
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return [c0, c1, c2, c3]


def gumbel_noise(
    seeds: list[int], choices: list[int], token_indices: list[int], vocab_size: int, device: torch.device
) -> Tensor:
    """Returns standard Gumbel noise [rows, vocab_size] float64; row i is keyed by the i-th (seed, choice, token index).

    Gumbel-max: the argmax of logits / temperature plus this noise is a sample of the softmax. Seeds are below 2**64.
    """

    def column(values: list[int]) -> Tensor:
        return to_device(values, torch.int64, device).unsqueeze(1)

    groups = torch.arange((vocab_size + 3) // 4, dtype=torch.int64, device=device).unsqueeze(0)
    zero = torch.full((1, 1), PURPOSE_SAMPLE, dtype=torch.int64, device=device)
    key = [column([seed & MASK for seed in seeds]), column([seed >> 32 for seed in seeds])]
    words = philox4x32([groups, column(token_indices), column(choices), zero], key)
    bits = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]
    uniform = (bits.double() + 0.5) * 2.0**-32  # in the open interval (0, 1)
    if device.type == "cuda":
        return _gumbel(uniform)
    # On a CPU, torch's vectorised log and the scalar log of a tensor's tail differ: one row at a time, bits are stable.
    return torch.stack([_gumbel(row) for row in uniform])


def _gumbel(uniform: Tensor) -> Tensor:
    return -torch.log(-torch.log(uniform))
