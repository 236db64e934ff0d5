"""Each Triton kernel equals its plain torch twin over random shapes; cases.py says within what.

Without a GPU the kernels run through Triton's interpreter.
"""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.gpu import attention_tiling, linear
from kernels.gpu.matrix import EightBitMatrix, matrix_of
from tests.kernels import attention_cases, cases, product_cases

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
# No shrinking: the interpreter is slow, and the shapes are small as they are.
few = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


every_form = pytest.mark.parametrize("quantization", [None, "int8", "fp8"], ids=str)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(tokens=st.integers(1, 9), size=st.sampled_from([1, 17, 64, 192, 1000]), seed=st.integers(0, 99))
def test_rms_norm(dtype: torch.dtype, tokens: int, size: int, seed: int) -> None:
    cases.check_rms_norm(DEVICE, dtype, tokens, size, seed)


@every_form
@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    rows=st.integers(1, 130),
    n=st.one_of(st.just(1), st.integers(1, 150)),
    k=st.sampled_from([1, 17, 64, 200, 517, 768]),
    seed=st.integers(0, 99),
)
def test_linear(dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int) -> None:
    product_cases.check_linear(DEVICE, dtype, rows, n, k, quantization, seed)


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        *((dtype, None) for dtype in DTYPES),
        *((torch.bfloat16, name) for name in ("int8", "fp8")),
        *(pytest.param(torch.float32, name, marks=pytest.mark.long) for name in ("int8", "fp8")),
    ],
    ids=str,
)
def test_a_row_of_a_product_depends_on_that_row_alone(
    dtype: torch.dtype, quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through all three tiles, and by both orders of programs: two tiles of many rows count as enough."""
    monkeypatch.setattr(linear, "ENOUGH", 2)
    rows = [1, 2, 15, 16, 17, 63, 64, 65, 130]
    assert {linear.enough(count, 70) for count in rows} == {False, True}
    assert linear.schedule_for(70, 600, dtype).segments > 1
    product_cases.check_rows_of_linear(DEVICE, dtype, rows, 70, 600, quantization)


@every_form
@pytest.mark.parametrize("dtype", DTYPES)
@settings(few, max_examples=2)
@given(rows=st.integers(1, 130), n=st.integers(1, 150), k=st.sampled_from([1, 137, 261, 256]), seed=st.integers(0, 99))
def test_paths_of_a_product_give_the_same_bits(
    dtype: torch.dtype, quantization: str | None, rows: int, n: int, k: int, seed: int
) -> None:
    product_cases.check_paths_of_linear(DEVICE, dtype, rows, n, k, quantization, seed)


@settings(max_examples=1000)
@given(
    n=st.one_of(st.integers(1, 2000), st.integers(1, 200_000)),
    k=st.integers(1, 30_000),
    dtype=st.sampled_from(DTYPES),
    rows=st.one_of(st.integers(1, 70), st.integers(1, 20_000)),
)
def test_a_schedule_covers_the_weight_and_its_workspace_is_set_aside(
    n: int, k: int, dtype: torch.dtype, rows: int
) -> None:
    block_k, steps, segments = linear.schedule_for(n, k, dtype)
    assert (segments - 1) * steps * block_k < k <= segments * steps * block_k
    if segments > 1 and not linear.enough(rows, n):
        assert 4 * segments * rows * n <= linear.workspace_bytes(rows)


@given(n=st.integers(1, 9), k=st.integers(1, 70), exponent=st.integers(-3, 3), seed=st.integers(0, 99))
def test_fp8_numbers_are_the_nearest(n: int, k: int, exponent: int, seed: int) -> None:
    """Four significant bits, down to 2**-6; below, steps of 2**-9."""
    weight = cases.randn(CPU, torch.float32, n, k, seed=seed) * 10**exponent
    numbers, scales = reference.quantise_fp8(weight)
    assert numbers.float().abs().amax(dim=1).eq(448).all()
    wide, steps = numbers.double() * scales.double()[:, None], scales.double()[:, None]
    cases.share_of(wide, weight.double(), 1e-6 * weight.abs() + torch.maximum(weight.abs() / 16, steps / 1024))


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # the interpreter's
@pytest.mark.parametrize("quantization", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_nothing_and_of_what_is_no_number(dtype: torch.dtype, quantization: str) -> None:
    weight = torch.ones(4, 33, dtype=dtype, device=DEVICE)
    weight[1], weight[2, 32], weight[3, 7] = 0, float("nan"), float("-inf")
    matrix = matrix_of([weight], quantization)
    out = matrix.product(torch.ones(3, 33, dtype=dtype, device=DEVICE), torch.float32)
    assert out[:, 0].tolist() == pytest.approx([33] * 3) and out[:, 1].tolist() == [0, 0, 0]
    assert not out[:, 2:].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_eight_bits_is_widened_exactly(dtype: torch.dtype) -> None:
    """All of float8_e4m3fn, and all of int8, by scales of 1."""
    numbers = torch.arange(256, dtype=torch.int16, device=DEVICE).to(torch.uint8)[None]
    fp8 = torch.where((numbers & 127) == 127, 0, numbers).view(torch.float8_e4m3fn)  # 127: not a number
    for kind in (numbers.view(torch.int8), fp8):
        matrix = EightBitMatrix(kind, torch.ones(1, device=DEVICE), dtype)
        identity = torch.eye(256, dtype=dtype, device=DEVICE)
        assert torch.equal(matrix.product(identity, torch.float32), kind.float().T)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(
    tokens=st.integers(1, 9),
    heads=st.integers(1, 7),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([2, 6, 16, 24, 64, 128, 256]),
    block_size=st.sampled_from([1, 4, 16]),
    with_norm=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rope_and_write(
    dtype: torch.dtype,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    with_norm: bool,
    seed: int,
) -> None:
    cases.check_rope_and_write(DEVICE, dtype, tokens, heads, kv_heads, head_dim, block_size, with_norm, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(rows=st.integers(1, 9), size=st.sampled_from([1, 17, 192, 1024, 1500]), seed=st.integers(0, 99))
def test_silu_mul(dtype: torch.dtype, rows: int, size: int, seed: int) -> None:
    cases.check_silu_mul(DEVICE, dtype, rows, size, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_alone(dtype: torch.dtype) -> None:
    cases.check_rows_of_pointwise(DEVICE, dtype, [1, 2, 7, 33], size=192, head_dim=24)


def test_a_padding_token_writes_nothing() -> None:
    case = cases.rope_case(DEVICE, torch.float32, 3, 2, 1, 16, 4, with_norm=True)
    case.slots.fill_(-1)
    caches = case.copies()
    assert torch.isfinite(case.triton(caches)).all()
    assert all(torch.equal(*pair) for pair in zip(caches, case.caches, strict=True))


# Small tiles and segments, so that few keys make several of each; page sizes of every kind against a tile of 16.
ATTENTION: dict[str, st.SearchStrategy[Any]] = {
    "lens": st.lists(
        st.one_of(st.tuples(st.integers(1, 40), st.integers(0, 150)), st.just((1, -1))), min_size=1, max_size=4
    ),
    "kv_heads": st.integers(1, 3),
    "group": st.sampled_from([1, 2, 3, 5]),
    "head_dim": st.sampled_from([16, 24, 64]),
    "block_size": st.sampled_from([1, 3, 4, 16, 48, 256]),
    "seed": st.integers(0, 99),
    "window": st.one_of(st.just(0), st.integers(1, 200)),
    "tile": st.just(16),
    "segment": st.sampled_from([16, 32, 48]),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@few
@given(shape=st.fixed_dictionaries(ATTENTION))
def test_paged_attention(dtype: torch.dtype, shape: dict[str, Any]) -> None:
    attention_cases.check_paged_attention(DEVICE, dtype, **shape)


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(shape=st.fixed_dictionaries(ATTENTION))
def test_attention_gives_the_same_bits_however_it_is_split(dtype: torch.dtype, shape: dict[str, Any]) -> None:
    """And those of the same positions within a chunk."""
    attention_cases.check_splits_of_attention(DEVICE, dtype, **shape)


@pytest.mark.parametrize("group", [64, 100])
def test_attention_where_one_query_fills_a_tile(group: int) -> None:
    attention_cases.check_paged_attention(DEVICE, torch.float32, [(3, 20), (1, 5)], 1, group, 16, 16)


@pytest.mark.parametrize("window", [0, 30])
def test_attention_as_it_is_served(window: int) -> None:
    """The tiling, the segments and the number of parts in use, over more than two segments."""
    lens = [(1, 600), (1, -1), (1, 255), (1, 256)]
    case = attention_cases.attention_case(DEVICE, torch.bfloat16, lens, 1, 2, 16, 16, window=window)
    out = case.triton()
    assert attention_tiling.choose_num_splits(4, 1) > 1 and attention_cases.same_bits(out, case.by(case.tiling(), 1))
    assert not out[1].any()
    cases.share_of(out, case.twin(), cases.tolerance(case.twin(), floor=0.25))


@pytest.mark.parametrize(
    ("dtype", "window"),
    [
        *((torch.bfloat16, window) for window in (0, 9)),
        (torch.float32, 40),
        pytest.param(torch.bfloat16, 40, marks=pytest.mark.long),
        *(pytest.param(torch.float32, window, marks=pytest.mark.long) for window in (0, 9)),
    ],
    ids=str,
)
def test_attention_gives_the_same_bits_however_a_prompt_is_cut(dtype: torch.dtype, window: int) -> None:
    shape = {"kv_heads": 1, "group": 2, "head_dim": 16, "block_size": 4}
    attention_cases.check_cuts_of_attention(DEVICE, dtype, 75, **shape, window=window, tile=16, segment=32)


def test_what_the_workspace_of_attention_takes() -> None:
    """No number of requests takes more than is set aside."""
    heads, kv_heads, head_dim, length = 32, 8, 128, 5000
    for tokens in (1, 7, 2000):
        taken = max(
            rows * heads * -(-length // attention_tiling.SEGMENT) * (head_dim + 2) * 4
            for rows in range(tokens + 1)
            if rows and attention_tiling.choose_num_splits(rows, kv_heads) > 1
        )
        assert taken == attention_tiling.scratch_bytes(tokens, heads, kv_heads, head_dim, length)
