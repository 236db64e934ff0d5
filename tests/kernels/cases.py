"""One comparison of each Triton kernel with its plain torch twin, on any device: for the tests here and for tests/gpu.

Each returns the largest error as a share of what is allowed, and raises AssertionError above 1. Allowed are 1e-5 in
float32 and two units in the last place in the short types. Needs torch and Triton alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import kv_write, linear, norm_rope, paged_attention, reference

EPS = 1e-6
SPARE_BLOCKS = 3


def randn(device: torch.device, dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """The same numbers on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def share_of(actual: Tensor, expected: Tensor, allowed: Tensor) -> float:
    """The largest error divided by what is allowed for it."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype and actual.device == expected.device
    worst = ((actual.double() - expected.double()).abs() / allowed.double()).max().item()
    assert worst <= 1, f"{worst:.3g} times the error that is allowed"  # also for NaN
    return worst


def tolerance(expected: Tensor, floor: float = 0.0) -> Tensor:
    """Float32: 1e-5. Short types: 2 units in the last place; `floor` is the magnitude below which cancellation, not
    rounding, decides the last place."""
    magnitude = expected.float().abs()
    if expected.dtype == torch.float32:
        return 1e-5 + 1e-5 * magnitude
    info = torch.finfo(expected.dtype)
    return 2 * info.eps * torch.exp2(torch.floor(torch.log2(magnitude.clamp(min=max(floor, info.tiny)))))


def check_rms_norm(device: torch.device, dtype: torch.dtype, tokens: int, size: int, seed: int = 0) -> float:
    """Both norms, with and without a residual."""
    x, residual = (randn(device, dtype, tokens, size, seed=seed + n) for n in (0, 1))
    weight = randn(device, dtype, size, seed=seed + 2)
    pairs = [
        (norm_rope.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS)),
        *zip(
            norm_rope.add_rms_norm(x, residual, weight, EPS),
            reference.add_rms_norm(x, residual, weight, EPS),
            strict=True,
        ),
    ]
    return max(share_of(actual, expected, tolerance(expected)) for actual, expected in pairs)


def check_norm_rope(
    device: torch.device, dtype: torch.dtype, tokens: int, heads: int, head_dim: int, with_norm: bool, seed: int = 0
) -> float:
    """Heads cut out of a fused projection, so strided over tokens."""
    x = randn(device, dtype, tokens, heads + 2, head_dim, seed=seed)[:, 1 : 1 + heads]
    weight = randn(device, dtype, head_dim, seed=seed + 1) if with_norm else None
    source = torch.Generator().manual_seed(seed)
    angles = torch.rand(50, head_dim // 2, generator=source) * 7
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
    positions = torch.randint(0, 50, (tokens,), generator=source).to(device)
    actual = norm_rope.norm_rope(x, weight, EPS, cos_sin, positions)
    expected = reference.norm_rope(x, weight, EPS, cos_sin, positions)
    return share_of(actual, expected, tolerance(expected, floor=0.1))


def check_linear(device: torch.device, dtype: torch.dtype, rows: int, n: int, k: int, seed: int = 0) -> float:
    """Rounding of k float32 summands in another order, and of the result."""
    x, weight = (randn(device, dtype, size, k, seed=seed + size) for size in (rows, n))
    matrix = linear.TritonMatrix(weight)
    expected = reference.linear(x, weight)
    allowed = 4e-7 * (x.abs().float() @ weight.abs().float().T)
    short = expected.to(dtype)
    return max(
        share_of(matrix.product(x, torch.float32), expected, allowed + tolerance(expected)),
        share_of(matrix.product(x), short, allowed + tolerance(short)),
    )


def check_rows_of_linear(device: torch.device, dtype: torch.dtype, rows: list[int], n: int, k: int) -> float:
    """A row has the same bits alone, among the first so many rows, and mixed among others."""
    x, matrix = randn(device, dtype, max(rows), k), linear.TritonMatrix(randn(device, dtype, n, k, seed=1))
    whole = matrix.product(x)
    for count in rows:
        assert torch.equal(matrix.product(x[:count]), whole[:count]), f"{count} rows differ"
        mixed = torch.randperm(max(rows), generator=torch.Generator().manual_seed(count))[:count].to(device)
        assert torch.equal(matrix.product(x[mixed]), whole[mixed]), f"{count} rows, mixed, differ"
    return 0.0


def check_write_kv(
    device: torch.device, dtype: torch.dtype, tokens: int, kv_heads: int, head_dim: int, block_size: int, seed: int = 0
) -> float:
    """Bit for bit, and nothing beside the tokens' own places changes."""
    num_blocks = 30 + -(-tokens // block_size)
    packed = randn(device, dtype, tokens, 2 * kv_heads, head_dim, seed=seed)
    key, value = packed[:, :kv_heads], packed[:, kv_heads:]
    slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(seed))[:tokens].to(device)
    caches = [randn(device, dtype, num_blocks, block_size, kv_heads, head_dim, seed=seed + n) for n in (1, 2)]
    twins = [cache.clone() for cache in caches]
    kv_write.write_kv(key, value, caches[0], caches[1], slots)
    reference.write_kv(key, value, twins[0], twins[1], slots)
    assert all(torch.equal(cache, twin) for cache, twin in zip(caches, twins, strict=True)), "the caches differ"
    return 0.0


@dataclass(frozen=True)
class AttentionCase:
    """Chunks and single tokens mixed, through shuffled block tables. What no request owns holds NaN."""

    query: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    query_lens: list[int]
    seq_lens: list[int]

    def triton(self) -> Tensor:
        starts, lens = self.places()
        return paged_attention.paged_attention(
            self.query, self.keys, self.values, self.tables, starts, lens, max(self.query_lens), self.scale
        )

    def twin(self, values: Tensor | None = None) -> Tensor:
        starts, lens = self.places()
        values = self.values if values is None else values
        return reference.paged_attention(self.query, self.keys, values, self.tables, starts, lens, self.scale)

    def places(self) -> tuple[Tensor, Tensor]:
        starts = [0, *torch.tensor(self.query_lens).cumsum(0).tolist()]
        device = self.query.device
        return (
            torch.tensor(starts, dtype=torch.int32, device=device),
            torch.tensor(self.seq_lens, dtype=torch.int32, device=device),
        )

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)


def attention_case(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
) -> AttentionCase:
    """`lens` are (new tokens, tokens before them) of each request."""
    query_lens = [queries for queries, _ in lens]
    seq_lens = [queries + context for queries, context in lens]
    blocks = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(blocks) + SPARE_BLOCKS
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).int()
    tables = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
    foreign = torch.ones(num_blocks, block_size, dtype=torch.bool)
    used = 0
    for row, count in enumerate(blocks):
        tables[row, :count] = own = order[used : used + count]
        places = foreign[own.long()].flatten()
        places[: seq_lens[row]] = False
        foreign[own.long()] = places.view(count, block_size)
        used += count
    caches = [randn(device, dtype, num_blocks, block_size, kv_heads, head_dim, seed=seed + n) for n in (0, 1)]
    for cache in caches:
        cache[foreign.to(device)] = float("nan")
    query = randn(device, dtype, sum(query_lens), kv_heads * group, head_dim, seed=seed + 2)
    return AttentionCase(query, caches[0], caches[1], tables.to(device), query_lens, seq_lens)


def part_of(case: AttentionCase, start: int, end: int) -> AttentionCase:
    """The first request's tokens from `start` to `end`, alone, with what came before them in the cache."""
    return AttentionCase(case.query[start:end], case.keys, case.values, case.tables[:1], [end - start], [end])


def check_paged_attention(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
) -> float:
    case = attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size, seed)
    actual, expected = case.triton(), case.twin()
    if device.type == "cuda" and dtype != torch.float32:
        # There the kernel rounds the weights to the short type before they meet the values: half a unit in the last
        # place of each summand, then the same of both results. 1e-5 is for float32's own rounding.
        half = torch.finfo(dtype).eps / 2
        allowed = half * (1.05 * case.twin(case.values.abs()).float() + 2 * expected.float().abs()) + 1e-5
        return share_of(actual, expected, allowed)
    # Weighted sums of values near 1 cancel: the last place of what remains is that of the summands.
    return share_of(actual, expected, tolerance(expected, floor=0.25))


def check_cuts_of_attention(
    device: torch.device, dtype: torch.dtype, length: int, kv_heads: int, group: int, head_dim: int, block_size: int
) -> float:
    """A token's result has the same bits however its prompt is cut, alone or beside others."""
    case = attention_case(device, dtype, [(length, 0), (5, 40)], kv_heads, group, head_dim, block_size)
    whole = case.triton()[:length]
    assert torch.isfinite(whole).all(), "not a number"
    for size in (1, 3, 7, length // 2 + 1):
        for start in range(0, length, size):
            end = min(start + size, length)
            part = part_of(case, start, end).triton()
            assert torch.equal(part, whole[start:end]), f"tokens {start} to {end} in chunks of {size} differ"
    return 0.0
