"""The compiled CPU kernels equal their twins over random shapes and are batch-invariant, in every runnable variant."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu.library import Library
from kernels.cpu.ops import CpuOps
from kernels.program import ACTIVATIONS
from tests.kernels.attention_cases import AttentionCase, attention_case, part_of
from tests.kernels.bitmask_cases import check_bitmask
from tests.kernels.cases import EPS, randn, share_of, tolerance
from tests.kernels.cpu_cases import CPU, attend, every_dtype, few, in_cpu_layout


@every_dtype
@few
@given(
    tokens=st.integers(1, 20),
    size=st.sampled_from([1, 15, 16, 17, 192, 1000]),
    centred=st.booleans(),
    with_bias=st.booleans(),
    factor=st.sampled_from([1.0, 0.22]),
    seed=st.integers(0, 99),
)
def test_norms(
    ops: CpuOps, dtype: torch.dtype, tokens: int, size: int, centred: bool, with_bias: bool, factor: float, seed: int
) -> None:
    x, residual = (randn(CPU, dtype, tokens, size, seed=seed + n) for n in (0, 1))
    weight, bias = (randn(CPU, torch.float32, size, seed=seed + n) for n in (2, 3))
    how = weight, bias if with_bias else None, EPS, centred
    floor = 0.5 if centred or with_bias else 0.0  # a difference may cancel
    expected = reference.norm(x, *how)
    share_of(ops.norm(x, *how), expected, tolerance(expected, floor))
    actual, total = ops.add_norm(x, residual, factor, *how)
    twin = reference.add_norm(x, residual, factor, *how)
    share_of(total, twin[1], tolerance(twin[1], 0.5))
    if factor == 1.0:
        assert torch.equal(total, twin[1])
    share_of(actual, reference.norm(total, *how), tolerance(twin[0], floor))


@every_dtype
@few
@given(
    tokens=st.integers(1, 20),
    groups=st.integers(1, 5),
    size=st.sampled_from([1, 16, 17, 80]),
    shared=st.booleans(),
    centred=st.booleans(),
    seed=st.integers(0, 99),
)
def test_norms_of_parts_of_rows(
    ops: CpuOps, dtype: torch.dtype, tokens: int, groups: int, size: int, shared: bool, centred: bool, seed: int
) -> None:
    x = randn(CPU, dtype, tokens, 3 + groups * size + 2, seed=seed)[:, 3:-2].unflatten(1, (groups, size))
    weight = randn(CPU, torch.float32, *([size] if shared else [groups, size]), seed=seed + 1)
    expected = reference.norm(x, weight, None, EPS, centred)
    share_of(ops.norm(x, weight, None, EPS, centred), expected, tolerance(expected, 0.5))


@every_dtype
@few
@given(
    rows=st.integers(1, 20),
    size=st.integers(1, 100),
    kind=st.sampled_from(ACTIVATIONS),
    gated=st.booleans(),
    scale=st.sampled_from([1.0, 30.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_activations(
    ops: CpuOps, dtype: torch.dtype, rows: int, size: int, kind: str, gated: bool, scale: float, seed: int
) -> None:
    scale = min(scale, 30.0) if dtype == torch.float16 else scale  # squares stay finite
    x = randn(CPU, dtype, rows, size, seed=seed) * scale
    x = torch.cat((x, randn(CPU, dtype, rows, size, seed=seed + 1)), dim=1) if gated else x
    expected = reference.activate(x, kind, gated, 1.7, 2.0)
    floor = 1e-3 if kind.startswith("gelu") else 1e-4  # 1 + erf and 1 + tanh cancel, and are off by about 1e-7
    share_of(ops.activate(x, kind, gated, 1.7, 2.0), expected, tolerance(expected, floor))


@few
@given(
    rows=st.integers(1, 20), vocab=st.integers(1, 200), density=st.sampled_from([0.0, 0.02, 0.5, 0.98]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_bitmask(ops: CpuOps, rows: int, vocab: int, density: float, seed: int) -> None:
    check_bitmask(ops.apply_bitmask, CPU, rows, vocab, density, seed)


@few
@given(rows=st.integers(1, 9), vocab=st.integers(1, 200), cap=st.sampled_from([1.0, 30.0]), seed=st.integers(0, 99))
def test_soft_caps(ops: CpuOps, rows: int, vocab: int, cap: float, seed: int) -> None:
    logits = 3 * cap * randn(CPU, torch.float32, rows, vocab, seed=seed)
    expected, alone = logits.clone(), logits[:1].clone()
    reference.soft_cap(expected, cap)
    ops.soft_cap(logits, cap)
    share_of(logits, expected, 1e-6 * cap + tolerance(expected))
    ops.soft_cap(alone, cap)
    assert torch.equal(alone[0], logits[0])


@every_dtype
@few
@given(
    tokens=st.integers(1, 20),
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([4, 16, 24, 64, 80, 96]),
    block_size=st.sampled_from([1, 3, 4, 16]),
    with_norm=st.booleans(),
    turned=st.sampled_from([None, 1.0, 0.5]),
    seed=st.integers(0, 99),
)
def test_rope_and_write(
    ops: CpuOps,
    dtype: torch.dtype,
    tokens: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    with_norm: bool,
    turned: float | None,
    seed: int,
) -> None:
    """`turned`: the share of a head that the rotary embedding turns; queries and keys have tables of their own."""
    qkv = randn(CPU, dtype, tokens, (group + 2) * kv_heads * head_dim, seed=seed)
    norm = partial(randn, CPU, torch.float32, head_dim)
    norms = (norm(seed=1), norm(seed=2)) if with_norm else None
    source = torch.Generator().manual_seed(seed)
    angles = torch.rand(50, int(head_dim // 2 * (turned or 1)), generator=source) * 7
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    tables = None if turned is None else (cos_sin * 1.5, cos_sin)
    positions = torch.randint(0, 50, (tokens,), generator=source)
    num_blocks = 3 + -(-tokens // block_size)
    slots = torch.randperm(num_blocks * block_size, generator=source)[:tokens]
    twin = (torch.ones(num_blocks, block_size, kv_heads, head_dim, dtype=dtype), torch.ones(0))
    twin = (twin[0], twin[0].clone())
    ours = in_cpu_layout(ops, *twin)
    expected = reference.rope_and_write(qkv, norms, EPS, tables, positions, twin, slots)
    actual = ops.rope_and_write(qkv, norms, EPS, tables, positions, ours, slots)
    share_of(actual, expected, tolerance(expected, floor=0.1))
    keys, values = in_cpu_layout(ops, *twin)
    assert torch.equal(ours[1], values)
    share_of(ours[0], keys, tolerance(keys, floor=0.1))
    untouched = torch.ones(num_blocks * block_size, dtype=torch.bool)
    untouched[slots] = False
    places = untouched.view(num_blocks, 1, 1, block_size, 1).expand(ours[0].shape)
    assert (ours[0][places] == 1).all(), "a key was written somewhere else"


@every_dtype
@few
@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 150)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 5]),
    head_dim=st.sampled_from([16, 24, 64, 80, 96, 128]),
    block_size=st.sampled_from([1, 3, 4, 16, 32]),
    seed=st.integers(0, 99),
    window=st.sampled_from([0, 0, 1, 2, 5, 17, 63, 64, 65, 100]),
    soft_cap=st.sampled_from([0.0, 1.5]),
    with_sinks=st.booleans(),
)
def test_paged_attention(
    ops: CpuOps,
    dtype: torch.dtype,
    lens: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    seed: int,
    window: int,
    soft_cap: float,
    with_sinks: bool,
) -> None:
    case = attention_case(CPU, dtype, lens, kv_heads, group, head_dim, block_size, seed, window, soft_cap, with_sinks)
    expected = case.twin()
    share_of(attend(ops, case), expected, tolerance(expected, floor=0.25))


@every_dtype
@pytest.mark.parametrize("head_dim", [16, 96])  # AMX multiplies heads of whole multiples of 32
def test_nan_and_infinity_reach_exactly_the_queries_that_attend_to_them(
    ops: CpuOps, dtype: torch.dtype, head_dim: int
) -> None:
    """A NaN key or infinite value shows in every query that attends to it, and changes no bit of an earlier one."""
    case = attention_case(CPU, dtype, [(30, 40)], 1, 2, head_dim, 16)
    case.keys[case.tables[0, 50 // 16], 50 % 16] = float("nan")
    found = torch.isnan(attend(ops, case)).all(dim=-1).all(dim=-1)
    assert found.tolist() == [position >= 50 for position in range(40, 70)]
    case.keys[case.tables[0, 50 // 16], 50 % 16] = 1.0
    whole = attend(ops, case)
    for place in (61, 60):
        case.values[case.tables[0, place // 16], place % 16] = float("inf")
        found = attend(ops, case)
        assert torch.equal(found[: place - 40], whole[: place - 40]), "a later value changes an earlier query's result"
        finite = torch.isfinite(found).all(dim=-1).all(dim=-1)
        assert finite.tolist() == [position < place for position in range(40, 70)], (
            "an earlier query reads a later value"
        )
    case.values[case.tables[0, 60 // 16], 60 % 16] = case.values[case.tables[0, 61 // 16], 61 % 16] = 1.0
    for window in (1, 2, 7, 8):
        windowed = replace(case, window=window)
        for place in (45, 46, 60):
            value = case.values[case.tables[0, place // 16], place % 16]
            kept = value.clone()
            value.fill_(float("nan"))
            finite = torch.isfinite(attend(ops, windowed)).all(dim=-1).all(dim=-1)
            assert finite.tolist() == [not place <= position < place + window for position in range(40, 70)], (
                "a query reads a value outside its window"
            )
            value.copy_(kept)
    for kind in ACTIVATIONS:
        assert torch.isnan(ops.activate(torch.full((1, 4), float("nan")), kind, True)).all()
        assert torch.isnan(ops.activate(torch.full((1, 4), float("nan")), kind, False)).all()


@every_dtype
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("block_size", "head_dim"), [(3, 24), (4, 96), (16, 24), (16, 64)])
@pytest.mark.parametrize(("window", "soft_cap", "with_sinks"), [(0, 0.0, False), (37, 0.0, True), (70, 1.5, False)])
def test_attention_gives_the_same_bits_however_a_prompt_is_chunked(
    library: Library,
    dtype: torch.dtype,
    threads: int,
    block_size: int,
    head_dim: int,
    window: int,
    soft_cap: float,
    with_sinks: bool,
) -> None:
    """With a window, blocks that lie before it may be another request's: a NaN there reaches no query."""
    ops = CpuOps(library, threads)
    length = 150
    case = attention_case(
        CPU, dtype, [(length, 0), (5, 40)], 2, 3, head_dim, block_size, 0, window, soft_cap, with_sinks
    )
    whole = attend(ops, case)[:length]
    for size in (1, 3, 64, 149):
        for start in range(0, length, size):
            part = part_of(case, start, min(start + size, length))
            if window:
                given_back = case.tables[0, : max(0, start - window + 1) // block_size].long()
                part = replace(part, keys=part.keys.clone(), values=part.values.clone())
                part.keys[given_back] = part.values[given_back] = float("nan")
            assert torch.equal(attend(ops, part), whole[start : start + size]), f"from {start} in chunks of {size}"


@every_dtype
def test_attention_gives_the_same_bits_for_every_block_size(ops: CpuOps, dtype: torch.dtype) -> None:
    """The same keys and values, laid out in blocks of 16 and of 4."""
    case = attention_case(CPU, dtype, [(3, 97)], 2, 2, 32, 16)
    own = case.tables[0].long()
    keys, values = (cache[own].reshape(-1, 4, 2, 32) for cache in (case.keys, case.values))
    small = AttentionCase(case.query, keys, values, torch.arange(len(keys)).int()[None], [3], [100])
    assert torch.equal(attend(ops, case), attend(ops, small))


@every_dtype
def test_norms_and_activations_are_batch_invariant(library: Library, dtype: torch.dtype) -> None:
    ops = CpuOps(library, 2)
    x, weight = randn(CPU, dtype, 100, 66), randn(CPU, torch.float32, 66, seed=1)
    for centred in (False, True):
        normed = ops.norm(x, weight, weight, EPS, centred)
        for row in range(100):
            assert torch.equal(ops.norm(x[row : row + 1], weight, weight, EPS, centred)[0], normed[row])
    for kind in ACTIVATIONS:
        activated = ops.activate(x, kind, True)
        for row in range(100):
            assert torch.equal(ops.activate(x[row : row + 1], kind, True)[0], activated[row])
