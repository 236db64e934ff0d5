"""The Triton kernels against their plain torch twins: one row for each kernel and dtype.

On a GPU each kind of shape compiles its own kernels, a second each: bf16, which models are served in, has all of them.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernels.gpu import attention, rope
from loadtest.gpu.shapes import PRODUCTS, VOCAB
from loadtest.gpu.table import Check, Note
from tests.kernels import attention_cases, cases, product_cases

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
Shape = dict[str, Any]

# (kv_heads, group, head_dim, block_size): every head size, GQA ratio and block size that a model is likely to have,
# the odd ones, and the ones (1) that the compiler treats as constants.
HEADS = [
    (8, 2, 128, 16), (2, 4, 64, 16), (1, 1, 16, 1), (3, 2, 24, 4), (2, 2, 256, 16), (8, 1, 64, 32), (1, 8, 128, 16),
    (2, 7, 64, 8), (4, 5, 80, 16), (2, 3, 96, 16), (1, 16, 128, 128), (2, 24, 64, 16), (8, 4, 128, 256),
]  # fmt: skip
NUM_OTHER_HEADS = 5  # of them, for the other dtypes
LENS = [
    [(1, 0)],
    [(1, 62), (1, 63), (1, 64), (1, 65), (1, 127)],
    [(7, 0), (1, 130), (33, 77), (16, 48)],
    [(129, 1), (1, 999), (40, 150)],
]
FEW_HEADS, FEW_LENS = [(2, 2, 16, 4), (1, 3, 24, 1)], [[(1, 0)], [(7, 0), (1, 65), (5, 13)]]


def checks(device: torch.device) -> list[Check]:
    rows = []
    for name, dtype in DTYPES.items():
        rows += [
            *(row for form in forms(device) for row in product_checks(device, name, dtype, form)),
            check_of(f"kernel rms_norm {name}", cases.check_rms_norm, device, dtype, norm_shapes(device)),
            check_of(
                f"kernel rope_and_write {name}",
                cases.check_rope_and_write, device, dtype, rope_shapes(device, dtype),
            ),
            check_of(f"kernel silu_mul {name}", cases.check_silu_mul, device, dtype, activation_shapes(device)),
            check_of(
                f"kernels of one token {name}, any number: same bits",
                cases.check_rows_of_pointwise, device, dtype, rows_of_pointwise(device),
            ),
            check_of(
                f"kernel paged_attention {name}",
                attention_cases.check_paged_attention, device, dtype, attention_shapes(device, dtype),
            ),
            check_of(
                f"kernel paged_attention {name}, any cut: same bits",
                attention_cases.check_cuts_of_attention, device, dtype, cuts(device),
            ),
            check_of(
                f"kernel paged_attention {name}, any split: same bits",
                attention_cases.check_splits_of_attention, device, dtype, splits(device, dtype),
            ),
        ]  # fmt: skip
    if device.type == "cuda":
        name = "kernel rope_and_write and attention above 2**31 elements"
        rows.append(Check(name, lambda: beyond_int32(device), alone=False))
    return rows


def heads_for(device: torch.device, dtype: torch.dtype) -> list[tuple[int, int, int, int]]:
    if device.type != "cuda":
        return FEW_HEADS
    return HEADS if dtype == torch.bfloat16 else HEADS[:NUM_OTHER_HEADS]


def forms(device: torch.device) -> list[str | None]:
    """Of weights. Before Ada and Hopper, no GPU converts e4m3. A GPU that is not there converts it."""
    fp8 = device.type != "cuda" or not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (8, 9)
    return [None, "int8"] + ["fp8"] * fp8


def product_checks(device: torch.device, name: str, dtype: torch.dtype, form: str | None) -> list[Check]:
    kernel = f"kernel linear {name}" + (f", {form}" if form else "")
    kinds: list[tuple[str, Callable[..., float], list[Shape]]] = [
        ("", product_cases.check_linear, products(device, dtype)),
        (", any rows: same bits", product_cases.check_rows_of_linear, rows_of_products(device)),
        (", any path: same bits", product_cases.check_paths_of_linear, paths_of_products(device, dtype)),
    ]
    return [
        check_of(kernel + what, compare, device, dtype, [{**shape, "quantization": form} for shape in shapes])
        for what, compare, shapes in kinds
    ]


def check_of(
    name: str,
    compare: Callable[..., float],
    device: torch.device,
    dtype: torch.dtype,
    shapes: Iterable[Shape],
) -> Check:
    def run() -> str:
        worst, count = 0.0, 0
        for shape in shapes:
            try:
                worst = max(worst, compare(device, dtype, **shape))
            except Exception as error:
                what = ", ".join(f"{key}={value}" for key, value in shape.items())
                raise RuntimeError(f"{what}: {' '.join(str(error).split())}") from error
            count += 1
        if device.type == "cuda":
            torch.cuda.empty_cache()  # for the processes beside this one
        return f"{count} shapes, {'bit for bit' if worst == 0.0 else f'worst error {worst:.2f} of the allowed'}"

    return Check(name, run, alone=False)


ROWS = [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 2048]


def products(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    many = device.type == "cuda"
    layers = [(n, k) for n, k in PRODUCTS if n != VOCAB] if many else []
    sizes = [*layers, (70, 200), (1, 1)] if dtype == torch.bfloat16 or not many else [*layers[:1], (70, 200)]
    return [{"rows": rows, "n": n, "k": k} for n, k in sizes for rows in ((1, 17, 300) if many else (1, 17))]


def rows_of_products(device: torch.device) -> list[Shape]:
    if device.type != "cuda":
        return [{"rows": [1, 2, 17], "n": 70, "k": 600}]
    return [{"rows": ROWS, "n": n, "k": k} for n, k in PRODUCTS]


def paths_of_products(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    """Every tile, with segments beside each other and one after the other, for several lengths of a segment."""
    if device.type != "cuda":
        return [{"rows": 17, "n": 70, "k": 200}]
    sizes = [(70, 1031), (1024, 2048), (1, 1)] if dtype == torch.bfloat16 else [(70, 1031)]
    return [{"rows": rows, "n": n, "k": k} for n, k in sizes for rows in (1, 16, 33, 129, 300)]


def norm_shapes(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    sizes = [1, 17, 64, 192, 1000, 1024, 4096, 5120, 8192] if many else [1, 17, 192]
    return [{"tokens": tokens, "size": size} for size in sizes for tokens in ((1, 7, 333) if many else (1, 3))]


def rope_shapes(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    many = device.type == "cuda"
    by_heads = [
        (kv_heads * group, kv_heads, head_dim, block_size)
        for kv_heads, group, head_dim, block_size in heads_for(device, dtype)
    ]
    by_size = [(16, 8, head_dim, 16) for head_dim in (2, 80, 96)] if many else [(3, 1, 2, 4)]
    names = ("heads", "kv_heads", "head_dim", "block_size")
    return [
        {"tokens": tokens, **dict(zip(names, heads, strict=True)), "with_norm": with_norm}
        for heads in (*by_heads, *by_size)
        for tokens in ((1, 33, 500) if many else (1, 6))
        for with_norm in (True, False)
    ]


def activation_shapes(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    sizes = [1, 17, 192, 1000, 3072, 12288] if many else [1, 17, 1100]
    return [{"rows": rows, "size": size} for size in sizes for rows in ((1, 7, 333) if many else (1, 3))]


def rows_of_pointwise(device: torch.device) -> list[Shape]:
    if device.type != "cuda":
        return [{"rows": [1, 3, 5], "size": 17, "head_dim": 6}]
    return [
        {"rows": [1, 2, 17, 64, 333], "size": size, "head_dim": head_dim}
        for size, head_dim in ((1024, 128), (4096, 64), (1000, 80))
    ]


def attention_shapes(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    many = device.type == "cuda"
    names = ("kv_heads", "group", "head_dim", "block_size")
    shapes = [
        {"lens": lens, **dict(zip(names, heads, strict=True))}
        for heads in heads_for(device, dtype)
        for lens in (LENS if many else FEW_LENS)
    ]
    if not many:
        return [*shapes, {**shapes[-1], "window": 9, "tile": 16, "segment": 32}]
    shapes += [{**shape, "window": window} for shape in shapes[:12] for window in (1, 64, 100)]
    long = {"lens": [(257, 1024), (1, -1), (1, 40000)], "kv_heads": 8, "group": 2, "head_dim": 128}
    return shapes + [
        {**long, "block_size": block_size, "window": window}
        for block_size in ((1, 16, 48, 64, 256) if dtype == torch.bfloat16 else (16, 48))
        for window in (0, 1000)
    ]


def cuts(device: torch.device) -> list[Shape]:
    names = ("length", "kv_heads", "group", "head_dim", "block_size", "window")
    many = [(150, 2, 5, 64, 16, 0), (70, 1, 1, 24, 4, 0), (600, 8, 2, 128, 16, 0), (600, 8, 4, 128, 16, 130)]
    few = [(5, 1, 2, 16, 4, 0)]
    return [dict(zip(names, values, strict=True)) for values in (many if device.type == "cuda" else few)]


def splits(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    names = ("kv_heads", "group", "head_dim", "block_size")
    if device.type != "cuda":
        lens, few = [(7, 0), (1, -1), (5, 70)], {"tile": 16, "segment": 32}
        return [{"lens": lens, **dict(zip(names, heads, strict=True)), **few} for heads in FEW_HEADS]
    lens = [(40, 1000), (1, -1), (300, 5000), (1, 255), (1, 256), (7, 20000)]
    windowed = HEADS[:NUM_OTHER_HEADS]
    return [
        {"lens": lens, **dict(zip(names, heads, strict=True)), "window": window}
        for heads in heads_for(device, dtype)
        for window in ((0, 1000) if heads in windowed else (0,))
    ]


def beyond_int32(device: torch.device) -> str:
    """A cache whose last places lie beyond 2**31 elements: what is written there is found there."""
    block_size, kv_heads, head_dim, group = 16, 8, 128, 2
    per_block = block_size * kv_heads * head_dim
    num_blocks = 2**31 // per_block + 8
    wanted = 2 * 2 * num_blocks * per_block + 2**30
    free, _ = torch.cuda.mem_get_info(device)
    if free < wanted:
        return Note(f"left out: needs {wanted >> 20} MiB, {free >> 20} are free")
    dtype = torch.bfloat16
    caches = [torch.empty(num_blocks, block_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(2)]
    lens, own = [(30, 0)], torch.tensor([num_blocks - 1, num_blocks - 2], device=device)
    small = attention_cases.attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size)
    qkv = cases.randn(device, dtype, 30, (group + 2) * kv_heads * head_dim, seed=8)
    positions = torch.arange(30, device=device)
    cos_sin = torch.ones(30, head_dim, device=device)
    slots = own[positions // block_size] * block_size + positions % block_size
    rope.rope_and_write(qkv, None, cases.EPS, cos_sin, positions, (caches[0], caches[1]), slots)
    few = [torch.zeros(2, block_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(2)]
    rope.rope_and_write(qkv, None, cases.EPS, cos_sin, positions, (few[0], few[1]), positions)
    value = qkv[:, -kv_heads * head_dim :].view(30, kv_heads, head_dim)
    assert torch.equal(few[1].flatten(0, 1)[:30], value), "the values of a small cache differ"
    for cache, small_cache in zip(caches, few, strict=True):
        found, expected = cache[own].flatten(0, 1)[:30], small_cache.flatten(0, 1)[:30]
        assert torch.equal(found, expected), "rope_and_write wrote somewhere else"
    starts, length = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 30], [30]))
    bounds = 30, 30
    outs = [
        attention.paged_attention(small.query, *pair, table[None].int(), starts, length, *bounds, head_dim**-0.5)
        for pair, table in ((caches, own), (few, torch.arange(2, device=device)))
    ]
    assert torch.equal(*outs), "attention differs from that over a small cache"
    return f"{num_blocks} blocks, bit for bit"
