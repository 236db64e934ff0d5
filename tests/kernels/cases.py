"""One comparison of each Triton kernel with its plain torch twin, on any device: for the tests here and for tests/gpu.

Each returns the largest error as a share of what is allowed, and raises AssertionError above 1. Allowed are 1e-5 in
float32 and two units in the last place in the short types. Needs torch and Triton alone.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import activation, attention, linear, norm, rope
from kernels.gpu.attention import Tiling
from kernels.gpu.matrix import EIGHT_BITS, EightBitMatrix, TritonMatrix, matrix_of

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
    """A projection whose rows are strided, and shuffled places in the cache; every fourth token has none."""

    qkv: Tensor
    norms: tuple[Tensor, Tensor] | None
    cos_sin: Tensor
    positions: Tensor
    caches: tuple[Tensor, Tensor]
    slots: Tensor

    def triton(self, caches: tuple[Tensor, Tensor], tokens: slice = slice(None)) -> Tensor:
        """Writes into `caches`; of some of the tokens alone."""
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
    """Values bit for bit, and nothing beside the tokens' own places changes."""
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
    """A token has the same bits alone and among others."""
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


def strided(device: torch.device, dtype: torch.dtype, rows: int, k: int, seed: int = 0) -> Tensor:
    """Rows [rows, k] of a wider matrix."""
    return randn(device, dtype, rows, k + 8, seed=seed)[:, :k]


def weight_and_twin(
    device: torch.device, dtype: torch.dtype, n: int, k: int, quantization: str | None, seed: int
) -> tuple[TritonMatrix | EightBitMatrix, Tensor]:
    """A weight, and what it stands for, in float64."""
    weight = randn(device, dtype, n, k, seed=seed)
    matrix = matrix_of([weight[: n // 2], weight[n // 2 :]], quantization)
    if quantization is None:
        return matrix, weight.double()
    numbers, scales = EIGHT_BITS[quantization][1](weight)
    return matrix, numbers.double() * scales.double()[:, None]


def share_of_product(actual: Tensor, x: Tensor, twin: Tensor) -> float:
    """Rounding of k float32 summands in another order, and of the result."""
    wide = x.double() @ twin.T
    expected = wide.float().to(actual.dtype)
    summed = x.double().abs() @ twin.abs().T
    return share_of(actual, expected, 4e-7 * summed + tolerance(expected))


def check_linear(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    n: int,
    k: int,
    quantization: str | None = None,
    seed: int = 0,
) -> float:
    x = strided(device, dtype, rows, k, seed=seed + rows)
    matrix, twin = weight_and_twin(device, dtype, n, k, quantization, seed + n)
    ids = torch.arange(0, n, 3, device=device)
    assert torch.equal(matrix.rows(ids), twin[ids].float().to(dtype)), "the weight's rows differ"
    return max(share_of_product(matrix.product(x, wide), x, twin) for wide in (torch.float32, dtype))


def check_rows_of_linear(
    device: torch.device, dtype: torch.dtype, rows: list[int], n: int, k: int, quantization: str | None = None
) -> float:
    """A row has the same bits alone, among the first so many rows, and mixed among others."""
    x = randn(device, dtype, max(rows), k)
    matrix = matrix_of([randn(device, dtype, n, k, seed=1)], quantization)
    whole = matrix.product(x)
    for count in rows:
        assert torch.equal(matrix.product(x[:count]), whole[:count]), f"{count} rows differ"
        mixed = torch.randperm(max(rows), generator=torch.Generator().manual_seed(count))[:count].to(device)
        assert torch.equal(matrix.product(x[mixed]), whole[mixed]), f"{count} rows, mixed, differ"
    return 0.0


def check_paths_of_linear(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    n: int,
    k: int,
    quantization: str | None = None,
    seed: int = 0,
) -> float:
    """Every tile, with segments beside each other and one after the other: the same bits, for every number of them."""
    x = strided(device, dtype, rows, k, seed=seed)
    matrix, twin = weight_and_twin(device, dtype, n, k, quantization, seed + 1)
    weight, scales = (matrix.weight, None) if isinstance(matrix, TritonMatrix) else (matrix.numbers, matrix.scales)
    tiles = [linear.FEW, linear.SOME] + [linear.MANY] * (dtype != torch.float32)
    block_k, worst, counts = linear.STEP_BYTES // dtype.itemsize, 0.0, set()
    num_steps = -(-k // block_k)
    for steps in {1, 2, 3, -(-num_steps // 2), num_steps}:
        schedule = linear.Schedule(block_k, steps, -(-num_steps // steps))
        counts.add(schedule.segments)
        found = [
            linear.multiply(x, weight, scales, schedule, torch.float32, tile, split)
            for tile in tiles
            for split in (True, False)
        ]
        worst = max(worst, share_of_product(found[0], x, twin))
        for other in found[1:]:
            assert torch.equal(other, found[0]), f"tiles or paths differ in {schedule.segments} segments"
    assert num_steps in counts
    return worst


@dataclass(frozen=True)
class AttentionCase:
    """Chunks and single tokens mixed, through shuffled block tables. What no request owns holds NaN, and behind a
    request's own blocks its table names one of those."""

    query: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    query_lens: list[int]
    seq_lens: list[int]
    window: int = 0

    def triton(self) -> Tensor:
        return attention.paged_attention(*self.arguments(), self.window)

    def by(self, tiling: Tiling, parts: int) -> Tensor:
        return attention.attend(*self.arguments(), self.window, tiling, parts)

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int, float]:
        starts, lens = self.places()
        bounds = max(self.query_lens), max(self.seq_lens)
        return self.query, self.keys, self.values, self.tables, starts, lens, *bounds, self.scale

    def twin(self, values: Tensor | None = None) -> Tensor:
        starts, lens = self.places()
        values = self.values if values is None else values
        return reference.paged_attention(
            self.query, self.keys, values, self.tables, starts, lens, self.scale, self.window
        )

    def tiling(self) -> Tiling:
        return attention.tiling_of(self.query.dtype, self.query.shape[2], self.query.shape[1] // self.keys.shape[2])

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
    window: int = 0,
) -> AttentionCase:
    """`lens` are (new tokens, tokens before them) of each request; (1, -1) is padding: a token, and no length."""
    query_lens = [queries for queries, _ in lens]
    seq_lens = [queries + context for queries, context in lens]
    blocks = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(blocks) + SPARE_BLOCKS
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).int()
    tables = order[-1].repeat(len(lens), max(1, *blocks))
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
    return AttentionCase(query, caches[0], caches[1], tables.to(device), query_lens, seq_lens, window)


def part_of(case: AttentionCase, start: int, end: int) -> AttentionCase:
    """The first request's tokens from `start` to `end`, alone, with what came before them in the cache."""
    query, tables = case.query[start:end], case.tables[:1]
    return replace(case, query=query, tables=tables, query_lens=[end - start], seq_lens=[end])


def last_tokens(case: AttentionCase) -> tuple[AttentionCase, Tensor]:
    """Each request's last token alone, as in decode, and where it stands among the tokens."""
    rows = torch.tensor(case.query_lens, device=case.query.device).cumsum(0) - 1
    return replace(case, query=case.query[rows], query_lens=[1] * len(case.query_lens)), rows


def tiled(case: AttentionCase, tile: int | None, segment: int | None) -> Tiling:
    """The tiling in use, but for tiles of `tile` keys and segments of `segment` where they are given."""
    tiling = case.tiling()
    return replace(tiling, keys=tile or tiling.keys, segment=segment or tiling.segment)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Also of zeros, which may have a sign."""
    return torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def check_paged_attention(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
    window: int = 0,
    tile: int | None = None,
    segment: int | None = None,
) -> float:
    case = attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size, seed, window)
    actual, expected = case.by(tiled(case, tile, segment), 1), case.twin()
    if device.type == "cuda" and dtype != torch.float32:
        # There the kernel rounds the weights to the short type before they meet the values: half a unit in the last
        # place of each summand, then the same of both results. 1e-5 is for float32's own rounding.
        half = torch.finfo(dtype).eps / 2
        allowed = half * (1.05 * case.twin(case.values.abs()).float() + 2 * expected.float().abs()) + 1e-5
        return share_of(actual, expected, allowed)
    # Weighted sums of values near 1 cancel: the last place of what remains is that of the summands.
    return share_of(actual, expected, tolerance(expected, floor=0.25))


def check_cuts_of_attention(
    device: torch.device,
    dtype: torch.dtype,
    length: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    window: int = 0,
    tile: int | None = None,
    segment: int | None = None,
) -> float:
    """A token's result has the same bits however its prompt is cut, alone or beside others; single ones in parts."""
    lens = [(length, 0), (1, -1), (5, 40)]
    case = attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size, window=window)
    tiling = tiled(case, tile, segment)
    whole = case.by(tiling, 1)[:length]
    assert torch.isfinite(whole).all(), "not a number"
    for size in (1, 3, 7, length // 2 + 1):
        for start in range(0, length, size):
            end = min(start + size, length)
            part = part_of(case, start, end).by(tiling, 3 if size == 1 else 1)
            assert same_bits(part, whole[start:end]), f"tokens {start} to {end} in chunks of {size} differ"
    return 0.0


def check_splits_of_attention(
    device: torch.device,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int = 0,
    window: int = 0,
    tile: int | None = None,
    segment: int | None = None,
) -> float:
    """Each request's last token, decoded by any number of programs, has the bits that it has within its chunk."""
    case = attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size, seed, window)
    tiling = tiled(case, tile, segment)
    decode, rows = last_tokens(case)
    within = case.by(tiling, 1)[rows]
    assert torch.isfinite(within).all(), "not a number"
    for count in range(1, -(-max(case.seq_lens) // tiling.segment) + 1):
        assert same_bits(decode.by(tiling, count), within), f"{count} parts differ"
    return 0.0
