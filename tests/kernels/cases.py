"""Comparisons of Triton kernels with their twins on any device, for the tests here and for loadtest/gpu: norm, rope,
activation, and what all comparisons share. See also product_cases.py, attention_cases.py and draw_cases.py.

Each check returns its largest error as a share of the tolerance, and raises AssertionError above 1. The tolerance is
1e-5 in float32 and two units in the last place in 16-bit types. Needs only torch and Triton.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import activation, norm, rope, soft_cap
from kernels.program import ACTIVATIONS

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


def vectors(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """Returns the random weights or biases of a norm: float32, whatever the dtype of the activations."""
    return randn(device, torch.float32, *shape, seed=seed)


def check_norm(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    size: int,
    centred: bool = False,
    with_bias: bool = False,
    factor: float = 1.0,
    seed: int = 0,
) -> float:
    """Compares norm and add_norm of whole rows, x strided, with their twins; a sum with
    a factor of 1 bit for bit."""
    x = randn(device, dtype, tokens, size + 8, seed=seed)[:, :size]
    residual = randn(device, dtype, tokens, size, seed=seed + 1)
    bias = vectors(device, size, seed=seed + 3) if with_bias else None
    how = vectors(device, size, seed=seed + 2), bias, EPS, centred
    actual, total = norm.add_norm(x, residual, factor, *how)
    _, twin = reference.add_norm(x, residual, factor, *how)
    if factor == 1.0 and (device.type == "cuda" or dtype == torch.float32):  # the interpreter truncates to bf16
        assert torch.equal(total, twin), "the sums differ"
    floor = 0.5 if centred or with_bias else 0.0  # a difference may cancel
    pairs = [(norm.norm(x, *how), reference.norm(x, *how)), (actual, reference.norm(total, *how))]
    worst = max(share_of(actual, expected, tolerance(expected, floor)) for actual, expected in pairs)
    return max(worst, share_of(total, twin, tolerance(twin, 0.5)))


def check_norm_of_parts(
    device: torch.device,
    dtype: torch.dtype,
    tokens: int,
    groups: int,
    size: int,
    own: bool,
    centred: bool = False,
    with_bias: bool = False,
    seed: int = 0,
) -> float:
    """Compares the norm of parts of wider rows with its twin. `own`: each part has weights of its own."""
    first = size  # of the columns
    rows = randn(device, dtype, tokens, (groups + 2) * size, seed=seed)
    x = rows[:, first : first + groups * size].unflatten(1, (groups, size))
    shape = (groups, size) if own else (size,)
    bias = vectors(device, *shape, seed=seed + 2) if with_bias else None
    how = vectors(device, *shape, seed=seed + 1), bias, EPS, centred
    actual, expected = norm.norm(x, *how), reference.norm(x, *how)
    assert actual.is_contiguous()
    return share_of(actual, expected, tolerance(expected, 0.5 if centred or with_bias else 0.0))


@dataclass(frozen=True)
class RopeCase:
    """Inputs of rope_and_write: a projection `qkv` with strided rows, and shuffled cache `slots`; every fourth token
    has slot -1."""

    qkv: Tensor
    norms: tuple[Tensor, Tensor] | None
    tables: tuple[Tensor, Tensor] | None
    positions: Tensor
    caches: tuple[Tensor, Tensor]
    slots: Tensor

    def triton(self, caches: tuple[Tensor, Tensor], tokens: slice = slice(None)) -> Tensor:
        """Runs the kernel on the given tokens and returns the queries; writes keys and values into `caches`."""
        return rope.rope_and_write(
            self.qkv[tokens], self.norms, EPS, self.tables, self.positions[tokens], caches, self.slots[tokens]
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
    turned: float = 1.0,
    own_tables: bool = False,
) -> RopeCase:
    """`turned`: the share of a head that is rotated; 0: there are no tables. `own_tables`: queries have another table
    than keys."""
    source = torch.Generator().manual_seed(seed)
    width, num_blocks = (heads + 2 * kv_heads) * head_dim, 3 + -(-tokens // block_size)
    angles = torch.rand(50, max(1, int(head_dim // 2 * turned)), generator=source) * 7
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
    slots = torch.randperm(num_blocks * block_size, generator=source)[:tokens]
    slots[3::4] = -1
    size = (num_blocks, block_size, kv_heads, head_dim)
    return RopeCase(
        randn(device, dtype, tokens, width + 2 * head_dim, seed=seed)[:, head_dim : head_dim + width],
        (vectors(device, head_dim, seed=seed + 1), vectors(device, head_dim, seed=seed + 2)) if with_norm else None,
        (1.5 * table if own_tables else table, table) if turned else None,
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
    turned: float = 1.0,
    own_tables: bool = False,
) -> float:
    """Compares queries and keys within tolerance, values bit for bit; no other slot of the cache may change."""
    case = rope_case(device, dtype, tokens, heads, kv_heads, head_dim, block_size, with_norm, seed, turned, own_tables)
    caches, twins = case.copies(), case.copies()
    actual = case.triton(caches)
    expected = reference.rope_and_write(case.qkv, case.norms, EPS, case.tables, case.positions, twins, case.slots)
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


def check_activate(
    device: torch.device, dtype: torch.dtype, rows: int, size: int, kind: str, gated: bool, seed: int = 0
) -> float:
    x = 4 * randn(device, dtype, rows, (2 if gated else 1) * size + 3, seed=seed)[:, :-3]
    expected = reference.activate(x, kind, gated, 1.7, 2.0)
    allowed = tolerance(expected)
    if kind.startswith("gelu"):
        # 1 + erf and 1 + tanh cancel for negative numbers.
        first, second = (x[:, :size].float(), x[:, size:].float() if gated else 1.0)
        allowed = allowed + 2e-7 * (first * second).abs()
    return share_of(activation.activate(x, kind, gated, 1.7, 2.0), expected, allowed)


def check_soft_cap(device: torch.device, dtype: torch.dtype, rows: int, vocab: int, cap: float, seed: int = 0) -> float:
    logits = 3 * cap * randn(device, dtype, rows, vocab, seed=seed)
    expected = logits.clone()
    reference.soft_cap(expected, cap)
    soft_cap.soft_cap(logits, cap)
    return share_of(logits, expected, 1e-6 * cap + tolerance(expected))


def check_rows_of_pointwise(
    device: torch.device, dtype: torch.dtype, rows: list[int], size: int, head_dim: int
) -> float:
    """Asserts that norms, activations, soft caps and rope give a token the same bits alone and in batches.
    Returns 0.0."""
    most = max(rows)
    x, residual, gate_up = (randn(device, dtype, most, width, seed=width) for width in (size, size + 1, 2 * size))
    residual, weight, bias = residual[:, :size].contiguous(), vectors(device, size, seed=1), vectors(device, size)
    parts, weights = gate_up.view(most, 2, size), vectors(device, 2, size, seed=2)
    ropes = [
        rope_case(device, dtype, most, 5, 2, head_dim, 4, with_norm=True, turned=turned, own_tables=own_tables)
        for turned, own_tables in ((1.0, False), (0.5, True), (0.0, False))
    ]

    def results(part: slice) -> Iterator[Tensor]:
        """Yields tensors with a row for each token."""
        yield norm.norm(x[part], weight, None, EPS, False)
        yield norm.norm(x[part], weight, bias, EPS, True)
        yield norm.norm(parts[part], weights, None, EPS, False)
        yield from norm.add_norm(x[part], residual[part], 1.0, weight, None, EPS, False)
        yield from norm.add_norm(x[part], residual[part], 0.22, weight, bias, EPS, True)
        for kind in ACTIVATIONS:
            yield activation.activate(gate_up[part], kind, True)
            yield activation.activate(gate_up[part], kind, False)
        logits = gate_up[part].to(torch.float32, copy=True)
        soft_cap.soft_cap(logits, 2.0)
        yield logits
        for case in ropes:
            caches, slots = case.copies(), case.slots[part]
            yield case.triton(caches, part)
            for cache in caches:
                yield torch.where((slots >= 0)[:, None, None], cache.flatten(0, 1)[slots.clamp(min=0)], 0.0)

    whole = list(results(slice(0, most)))
    for count in rows:
        first = most - count  # the last `count` rows
        for actual, expected in zip(results(slice(first, most)), whole, strict=True):
            assert torch.equal(actual, expected[first:]), f"{count} rows differ"
    return 0.0
