"""Philox against Random123's test vectors; the noise depends on its key and counter alone."""

import math

import pytest
import torch

from kernels.philox import gumbel_noise, philox4x32

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    """From kat_vectors of the Random123 distribution."""
    words = philox4x32([torch.tensor(word) for word in counter], [torch.tensor(word) for word in key])
    assert [int(word) for word in words] == expected


def test_a_row_depends_on_its_seed_choice_and_index_alone() -> None:
    together = gumbel_noise([1, 2**64 - 1, 1], [0, 3, 1], [0, 10**6, 0], 101, CPU)
    for row, (seed, choice, index) in enumerate([(1, 0, 0), (2**64 - 1, 3, 10**6), (1, 1, 0)]):
        assert torch.equal(together[row], gumbel_noise([seed], [choice], [index], 101, CPU)[0])
    assert torch.equal(together[0, :50], gumbel_noise([1], [0], [0], 50, CPU)[0]), "the vocabulary size matters"


@pytest.mark.parametrize("other", [(2, 0, 0), (1 + 2**32, 0, 0), (1, 1, 0), (1, 0, 1)])
def test_seed_choice_and_index_each_change_it(other: tuple[int, int, int]) -> None:
    seed, choice, index = other
    assert not torch.equal(gumbel_noise([1], [0], [0], 64, CPU), gumbel_noise([seed], [choice], [index], 64, CPU))


def test_it_is_standard_gumbel() -> None:
    noise = gumbel_noise(list(range(50)), [0] * 50, [0] * 50, 4000, CPU)
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
