"""The Triton kernels against their plain torch twins: one row for each kernel and dtype."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from kernels import kv_write, paged_attention, reference
from tests.gpu.table import Check, Note
from tests.kernels import cases

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "float16": torch.float16}
Shape = dict[str, Any]

# (kv_heads, group, head_dim, block_size): every head size, GQA ratio and block size that a model is likely to have,
# the odd ones, and the ones (1) that the compiler treats as constants.
HEADS = [
    (8, 2, 128, 16), (2, 4, 64, 16), (1, 1, 16, 1), (3, 2, 24, 4), (8, 1, 64, 32), (1, 8, 128, 16), (2, 7, 64, 8),
    (4, 5, 80, 16), (2, 3, 96, 16), (1, 16, 128, 128), (2, 24, 64, 16), (8, 4, 128, 256), (2, 2, 256, 16),
]  # fmt: skip
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
            check_of(f"kernel linear {name}", cases.check_linear, device, dtype, products(device)),
            check_of(
                f"kernel linear {name}, any number of rows: same bits",
                cases.check_rows_of_linear, device, dtype, rows_of_products(device),
            ),
            check_of(f"kernel rms_norm {name}", cases.check_rms_norm, device, dtype, norm_shapes(device)),
            check_of(f"kernel norm_rope {name}", cases.check_norm_rope, device, dtype, rope_shapes(device)),
            check_of(f"kernel write_kv {name}", cases.check_write_kv, device, dtype, write_shapes(device)),
            check_of(f"kernel paged_attention {name}", cases.check_paged_attention, device, dtype, attention(device)),
            check_of(
                f"kernel paged_attention {name}, any cut: same bits",
                cases.check_cuts_of_attention, device, dtype, cuts(device),
            ),
        ]  # fmt: skip
    if device.type == "cuda":
        rows.append(Check("kernel write_kv and attention above 2**31 elements", lambda: beyond_int32(device)))
    return rows


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
        return f"{count} shapes, {'bit for bit' if worst == 0.0 else f'worst error {worst:.2f} of the allowed'}"

    return Check(name, run)


# (n, k) of every linear layer: qkv, out, gate_up, down and the head of Qwen3-0.6B, then of Qwen3-8B.
LINEAR = [
    (4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024),
    (6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096),
]  # fmt: skip
ROWS = [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 2048]


def products(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    return [
        {"rows": rows, "n": n, "k": k}
        for n, k in ([*LINEAR[:4], *LINEAR[5:9], (70, 200), (1, 1)] if many else [(70, 200), (1, 1)])
        for rows in ((1, 17, 300) if many else (1, 17))
    ]


def rows_of_products(device: torch.device) -> list[Shape]:
    if device.type != "cuda":
        return [{"rows": [1, 2, 17], "n": 70, "k": 200}]
    return [{"rows": ROWS, "n": n, "k": k} for n, k in LINEAR]


def norm_shapes(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    sizes = [1, 17, 64, 192, 1000, 1024, 4096, 5120, 8192] if many else [1, 17, 192]
    return [{"tokens": tokens, "size": size} for size in sizes for tokens in ((1, 7, 333) if many else (1, 3))]


def rope_shapes(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    places = [(1, 16), (5, 1), (257, 8)] if many else [(1, 2), (3, 1)]
    return [
        {"tokens": tokens, "heads": heads, "head_dim": head_dim, "with_norm": with_norm}
        for head_dim in ([2, 16, 24, 64, 80, 96, 128, 256] if many else [2, 24])
        for tokens, heads in places
        for with_norm in (True, False)
    ]


def write_shapes(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    return [
        {"tokens": tokens, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
        for kv_heads, _, head_dim, block_size in (HEADS if many else FEW_HEADS)
        for tokens in ((1, 33, 500) if many else (1, 7))
    ]


def attention(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    names = ("kv_heads", "group", "head_dim", "block_size")
    shapes = [
        {"lens": lens, **dict(zip(names, heads, strict=True))}
        for heads in (HEADS if many else FEW_HEADS)
        for lens in (LENS if many else FEW_LENS)
    ]
    long = [{"lens": [(257, 1024), (1, 4096)], "kv_heads": 8, "group": 2, "head_dim": 128, "block_size": 16}]
    return shapes + (long if many else [])


def cuts(device: torch.device) -> list[Shape]:
    names = ("length", "kv_heads", "group", "head_dim", "block_size")
    many = [(150, 8, 2, 128, 16), (150, 2, 5, 64, 16), (70, 1, 1, 24, 4)]
    return [dict(zip(names, values, strict=True)) for values in (many if device.type == "cuda" else [(5, 1, 2, 16, 4)])]


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
    small = cases.attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size)
    key, value = (cases.randn(device, dtype, 30, kv_heads, head_dim, seed=seed) for seed in (8, 9))
    positions = torch.arange(30, device=device)
    kv_write.write_kv(key, value, caches[0], caches[1], own[positions // block_size] * block_size + positions % 16)
    found = [cache[own].flatten(0, 1)[:30] for cache in caches]
    assert torch.equal(found[0], key) and torch.equal(found[1], value), "write_kv wrote somewhere else"
    few = [torch.zeros(2, block_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(2)]
    reference.write_kv(key, value, few[0], few[1], positions)
    starts, length = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 30], [30]))
    outs = [
        paged_attention.paged_attention(small.query, *pair, table[None].int(), starts, length, 30, head_dim**-0.5)
        for pair, table in ((caches, own), (few, torch.arange(2, device=device)))
    ]
    assert torch.equal(*outs), "attention differs from that over a small cache"
    return f"{num_blocks} blocks, bit for bit"
