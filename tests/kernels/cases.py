"""Comparisons of Triton kernels with their twins on any device, for the tests here and for loadtest/gpu: norm, rope,
activation, and what all comparisons share. See also product_cases.py, attention_cases.py and draw_cases.py.

Each check returns its largest error as a share of the tolerance, and raises AssertionError above 1. The tolerance is
1e-5 in float32 and two units in the last place in 16-bit types. Needs only torch and Triton.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import activation, norm, rope

EPS = 1e-6


def randn(device: torch.device, dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Returns normal random numbers, generated on the device, because the host takes seconds for a large weight."""
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device).to(dtype)


def share_of(actual: Tensor, expected: Tensor, allowed: Tensor) -> float:
    """Returns the largest error divided by its tolerance `allowed`. Raises AssertionError above 1."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype and actual.device == expected.device
    worst = ((actual.double() - expected.double()).abs() / allowed.double()).max().item()
    assert worst <= 1, f"{worst:.3g} times the error that is allowed"  # also for NaN
    return worst


def tolerance(expected: Tensor, floor: float = 0.0) -> Tensor:
    """Returns the tolerance per element: 1e-5 in float32, 2 units in the last place in 16-bit types.

    Below the magnitude `floor`, the last place is that of `floor`, because cancellation decides the error.
    """
    magnitude = expected.float().abs()
    if expected.dtype == torch.float32:
        return 1e-5 + 1e-5 * magnitude
    info = torch.finfo(expected.dtype)
    return 2 * info.eps * torch.exp2(torch.floor(torch.log2(magnitude.clamp(min=max(floor, info.tiny)))))


def check_rms_norm(device: torch.device, dtype: torch.dtype, tokens: int, size: int, seed: int = 0) -> float:
    """Compares rms_norm and add_rms_norm with their twins."""
    x, residual = (randn(device, dtype, tokens, size, seed=seed + n) for n in (0, 1))
    weight = randn(device, dtype, size, seed=seed + 2)
    pairs = [
        (norm.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS)),
        *zip(
            norm.add_rms_norm(x, residual, weight, EPS),
            reference.add_rms_norm(x, residual, weight, EPS),
            strict=True,
        ),
    ]
    return max(share_of(actual, expected, tolerance(expected)) for actual, expected in pairs)


@dataclass(frozen=True)
class RopeCase:
    """Inputs of rope_and_write: a projection `qkv` with strided rows, and shuffled cache `slots`; every fourth token
    has slot -1."""

    qkv: Tensor
    norms: tuple[Tensor, Tensor] | None
    cos_sin: Tensor
    positions: Tensor
    caches: tuple[Tensor, Tensor]
    slots: Tensor

    def triton(self, caches: tuple[Tensor, Tensor], tokens: slice = slice(None)) -> Tensor:
        """Runs the kernel on the given tokens and returns the queries; writes keys and values into `caches`."""
        return rope.rope_and_write(
            self.qkv[tokens], self.norms, EPS, self.cos_sin, self.positions[tokens], caches, self.slots[tokens]
        )

    def copies(self) -> tuple[Tensor, Tensor]:
        return self.caches[0].clone(), self.caches[1].clone()


def rope_case(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    with_norm: bool,
    seed: int = 0,
) -> RopeCase:
    source = torch.Generator().manual_seed(seed)
    width, num_blocks = (heads + 2 * kv_heads) * head_dim, 3 + -(-tokens // block_size)
    angles = torch.rand(50, head_dim // 2, generator=source) * 7
    slots = torch.randperm(num_blocks * block_size, generator=source)[:tokens]
    slots[3::4] = -1
    size = (num_blocks, block_size, kv_heads, head_dim)
    return RopeCase(
        randn(device, dtype, tokens, width + 2 * head_dim, seed=seed)[:, head_dim : head_dim + width],
        (randn(device, dtype, head_dim, seed=seed + 1), randn(device, dtype, head_dim, seed=seed + 2))
        if with_norm
        else None,
        torch.cat((angles.cos(), angles.sin()), dim=-1).to(device),
        torch.randint(0, 50, (tokens,), generator=source).to(device),
        (randn(device, dtype, *size, seed=seed + 3), randn(device, dtype, *size, seed=seed + 4)),
        slots.to(device),
    )


def check_rope_and_write(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    with_norm: bool,
    seed: int = 0,
) -> float:
    """Compares queries and keys within tolerance, values bit for bit; no other slot of the cache may change."""
    case = rope_case(device, dtype, tokens, heads, kv_heads, head_dim, block_size, with_norm, seed)
    caches, twins = case.copies(), case.copies()
    actual = case.triton(caches)
    expected = reference.rope_and_write(case.qkv, case.norms, EPS, case.cos_sin, case.positions, twins, case.slots)
    foreign = torch.ones(caches[0].shape[0] * block_size, dtype=torch.bool, device=device)
    foreign[case.slots[case.slots >= 0]] = False
    assert torch.equal(caches[1], twins[1]), "the values differ"
    keys, before = (cache.flatten(0, 1)[foreign] for cache in (caches[0], case.caches[0]))
    assert torch.equal(keys, before), "keys changed where no token is"
    assert actual.is_contiguous()
    return max(
        share_of(actual, expected, tolerance(expected, floor=0.1)),
        share_of(caches[0], twins[0], tolerance(twins[0], floor=0.1)),
    )


def check_silu_mul(device: torch.device, dtype: torch.dtype, rows: int, size: int, seed: int = 0) -> float:
    gate_up = 4 * randn(device, dtype, rows, 2 * size + 3, seed=seed)[:, : 2 * size]
    expected = reference.silu_mul(gate_up)
    return share_of(activation.silu_mul(gate_up), expected, tolerance(expected))


def check_rows_of_pointwise(
    device: torch.device, dtype: torch.dtype, rows: list[int], size: int, head_dim: int
) -> float:
    """Asserts that norms, silu_mul and rope give a token the same bits alone and in batches. Returns 0.0."""
    most = max(rows)
    x, residual, gate_up = (randn(device, dtype, most, width, seed=width) for width in (size, size + 1, 2 * size))
    residual, weight = residual[:, :size].contiguous(), randn(device, dtype, size, seed=1)
    case = rope_case(device, dtype, most, 5, 2, head_dim, 4, with_norm=True)

    def results(part: slice) -> list[Tensor]:
        caches = case.copies()
        return [
            norm.rms_norm(x[part], weight, EPS), *norm.add_rms_norm(x[part], residual[part], weight, EPS),
            activation.silu_mul(gate_up[part]), case.triton(caches, part),
            *(cache.flatten(0, 1)[case.slots[part].clamp(min=0)] for cache in caches),
        ]  # fmt: skip

    whole = results(slice(0, most))
    for count in rows:
        first = most - count  # the last `count` rows
        for actual, expected in zip(results(slice(first, most)), whole, strict=True):
            placed = case.slots[first:] >= 0 if expected.ndim == 3 and expected.shape[1] == 2 else slice(None)
            assert torch.equal(actual[placed], expected[first:][placed]), f"{count} rows differ"
    return 0.0
