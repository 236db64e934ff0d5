"""The shapes that each Triton kernel is checked with: many on a GPU, a few through the interpreter on a CPU.

Each function but heads() returns the keyword arguments of one check of tests/kernels for every shape.
"""

from typing import Any

import torch

from kernels.program import ACTIVATIONS
from loadtest.gpu.shapes import PRODUCTS, VOCAB

Shape = dict[str, Any]

# (kv_heads, group, head_dim, block_size): the head sizes, GQA ratios and block sizes of common models, odd ones, and
# ones (1), which the compiler treats as constants.
HEADS = [
    (8, 2, 128, 16), (2, 4, 64, 16), (1, 1, 16, 1), (3, 2, 24, 4), (2, 2, 256, 16), (8, 1, 64, 32), (1, 8, 128, 16),
    (2, 7, 64, 8), (4, 5, 80, 16), (2, 3, 96, 16), (1, 16, 128, 128), (2, 24, 64, 16), (8, 4, 128, 256),
]  # fmt: skip
NUM_OTHER_HEADS = 5  # the first of HEADS: for float32 and float16
LENS = [
    [(1, 0)],
    [(1, 62), (1, 63), (1, 64), (1, 65), (1, 127)],
    [(7, 0), (1, 130), (33, 77), (16, 48)],
    [(129, 1), (1, 999), (40, 150)],
]
TRAITS: Shape = {"soft_cap": 2.0, "with_sinks": True}  # of Gemma 2 and of gpt-oss
FEW_HEADS, FEW_LENS = [(2, 2, 16, 4), (1, 3, 24, 1)], [[(1, 0)], [(7, 0), (1, 65), (5, 13)]]


def heads(device: torch.device, dtype: torch.dtype) -> list[tuple[int, int, int, int]]:
    if device.type != "cuda":
        return FEW_HEADS
    return HEADS if dtype == torch.bfloat16 else HEADS[:NUM_OTHER_HEADS]


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
    """Returns the shapes of the check that tiles, and segments in parallel or in sequence, do not change the bits."""
    if device.type != "cuda":
        return [{"rows": 17, "n": 70, "k": 200}]
    sizes = [(70, 1031), (1024, 2048), (1, 1)] if dtype == torch.bfloat16 else [(70, 1031)]
    return [{"rows": rows, "n": n, "k": k} for n, k in sizes for rows in (1, 16, 33, 129, 300)]


def norms(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    sizes = [1, 17, 64, 192, 1000, 1024, 4096, 5120, 8192] if many else [1, 17, 192]
    forms = [(False, False, 1.0), (False, False, 0.22), (True, False, 1.0), (True, True, 0.22)]
    return [
        {"tokens": tokens, "size": size, "centred": centred, "with_bias": with_bias, "factor": factor}
        for size in sizes
        for tokens in ((1, 7, 333) if many else (1, 3))
        for centred, with_bias, factor in (forms if size in (192, 1024, 5120) else forms[:1])
    ]


def norms_of_parts(device: torch.device) -> list[Shape]:
    """Returns the shapes of norms of the queries or keys within a projection: a whole width, or each head."""
    many = device.type == "cuda"
    parts = [(1, 4096), (32, 64), (8, 80), (64, 128), (7, 300)] if many else [(1, 17), (3, 80)]
    return [
        {"tokens": tokens, "groups": groups, "size": size, "own": groups > 1, "centred": centred}
        for groups, size in parts
        for tokens in ((1, 7, 333) if many else (1, 3))
        for centred in (True, False)
    ]


def ropes(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    many = device.type == "cuda"
    by_heads = [
        (kv_heads * group, kv_heads, head_dim, block_size)
        for kv_heads, group, head_dim, block_size in heads(device, dtype)
    ]
    by_size = [(16, 8, head_dim, 16) for head_dim in (2, 80, 96)] if many else [(3, 1, 2, 4)]
    names = ("heads", "kv_heads", "head_dim", "block_size")
    whole = [
        {"tokens": tokens, **dict(zip(names, heads, strict=True)), "with_norm": with_norm}
        for heads in (*by_heads, *by_size)
        for tokens in ((1, 33, 500) if many else (1, 6))
        for with_norm in (True, False)
    ]
    # Rotated in part, with two tables, not at all.
    part_heads = [(24, 8, 128, 16), (16, 8, 80, 16), (32, 32, 64, 16), (5, 1, 96, 4)] if many else [(3, 1, 24, 4)]
    return whole + [
        {
            "tokens": tokens, **dict(zip(names, heads, strict=True)), "with_norm": with_norm, "turned": turned,
            "own_tables": own_tables,
        }
        for heads in part_heads
        for tokens in ((1, 333) if many else (6,))
        for with_norm in (True, False)
        for turned, own_tables in ((0.25, False), (0.75, True), (1.0, True), (0.0, False))
    ]  # fmt: skip


def activations(device: torch.device) -> list[Shape]:
    many = device.type == "cuda"
    sizes = [1, 17, 192, 1000, 3072, 12288] if many else [1, 17, 1100]
    return [
        {"rows": rows, "size": size, "kind": kind, "gated": gated}
        for size in sizes
        for rows in ((1, 7, 333) if many else (1, 3))
        for kind in ACTIVATIONS
        for gated in (True, False)
    ]


def experts(device: torch.device) -> list[Shape]:
    """Returns mixtures like those of Qwen3, GLM-4 and gpt-oss, and odd ones."""
    if device.type != "cuda":
        return [{"tokens": 7, "experts": 4, "top_k": 2, "hidden": 16, "size": 16}]
    kinds: list[Shape] = [
        {"experts": 128, "top_k": 8, "hidden": 2048, "size": 768},
        {
            "experts": 64,
            "top_k": 8,
            "hidden": 1024,
            "size": 384,
            "sigmoid": True,
            "groups": 8,
            "kept_groups": 4,
            "adds": True,
        },
        {"experts": 32, "top_k": 4, "hidden": 2880, "size": 2880, "with_bias": True, "kind": "clamped_silu"},
        {"experts": 5, "top_k": 3, "hidden": 130, "size": 34, "kind": "gelu", "gated": False},
    ]
    return [{"tokens": tokens, **kind} for kind in kinds for tokens in (1, 17, 300)]


def rows_of_experts(device: torch.device) -> list[Shape]:
    return [{**shape, "tokens": 40 if device.type == "cuda" else 5} for shape in experts(device)[::3]]


def soft_caps(device: torch.device) -> list[Shape]:
    sizes = [1, 1000, VOCAB] if device.type == "cuda" else [1, 1100]
    return [{"rows": rows, "vocab": vocab, "cap": cap} for vocab in sizes for rows in (1, 3) for cap in (1.0, 30.0)]


def rows_of_pointwise(device: torch.device) -> list[Shape]:
    if device.type != "cuda":
        return [{"rows": [1, 3, 5], "size": 17, "head_dim": 6}]
    return [
        {"rows": [1, 2, 17, 64, 333], "size": size, "head_dim": head_dim}
        for size, head_dim in ((1024, 128), (4096, 64), (1000, 80))
    ]


def attention(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    many = device.type == "cuda"
    names = ("kv_heads", "group", "head_dim", "block_size")
    shapes = [
        {"lens": lens, **dict(zip(names, heads, strict=True))}
        for heads in heads(device, dtype)
        for lens in (LENS if many else FEW_LENS)
    ]
    if not many:
        return [*shapes, {**shapes[-1], "window": 9, **TRAITS, "tile": 16, "segment": 32}]
    shapes += [{**shape, "window": window} for shape in shapes[:12] for window in (1, 64, 100)]
    shapes += [{**shape, **TRAITS} for shape in shapes[:20]]
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
    shapes = [dict(zip(names, values, strict=True)) for values in (many if device.type == "cuda" else few)]
    return [*shapes, {**shapes[-1], **TRAITS}]


def splits(device: torch.device, dtype: torch.dtype) -> list[Shape]:
    names = ("kv_heads", "group", "head_dim", "block_size")
    if device.type != "cuda":
        lens, few = [(7, 0), (1, -1), (5, 70)], {"tile": 16, "segment": 32}
        return [{"lens": lens, **dict(zip(names, heads, strict=True)), **few} for heads in FEW_HEADS]
    lens = [(40, 1000), (1, -1), (300, 5000), (1, 255), (1, 256), (7, 20000)]
    windowed = HEADS[:NUM_OTHER_HEADS]
    shapes = [
        {"lens": lens, **dict(zip(names, heads, strict=True)), "window": window}
        for heads in heads(device, dtype)
        for window in ((0, 1000) if heads in windowed else (0,))
    ]
    return [*shapes, *({**shape, **TRAITS} for shape in shapes[:2])]
