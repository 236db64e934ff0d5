"""The Triton kernels against their plain torch twins: one row for each kernel, dtype, quantization and property.

On a GPU, every shape class compiles kernels of its own, about a second each. bf16, the usual dtype of models, has all
shapes; the other dtypes have fewer of products, rope and attention.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch

from kernels.gpu import attention, rope
from kernels.gpu.ops import TritonOps
from loadtest.gpu import kernel_shapes
from loadtest.gpu.kernel_shapes import Shape
from loadtest.gpu.shapes import quantizations
from loadtest.gpu.table import Check, Note
from tests.kernels import attention_cases, cases, expert_cases, product_cases

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


def checks(device: torch.device) -> list[Check]:
    rows = []
    for name, dtype in DTYPES.items():
        rows += [
            *(row for each in quantizations(device) for row in product_checks(device, name, dtype, each)),
            check_of(f"kernel norm {name}", cases.check_norm, device, dtype, kernel_shapes.norms(device)),
            check_of(
                f"kernel norm of parts {name}",
                cases.check_norm_of_parts, device, dtype, kernel_shapes.norms_of_parts(device),
            ),
            check_of(
                f"kernel rope_and_write {name}",
                cases.check_rope_and_write, device, dtype, kernel_shapes.ropes(device, dtype),
            ),
            check_of(f"kernel activate {name}", cases.check_activate, device, dtype, kernel_shapes.activations(device)),
            check_of(
                f"kernels of one token {name}, any number: same bits",
                cases.check_rows_of_pointwise, device, dtype, kernel_shapes.rows_of_pointwise(device),
            ),
            check_of(
                f"kernel experts {name}",
                partial(expert_cases.check_experts, TritonOps()), device, dtype, kernel_shapes.experts(device),
            ),
            check_of(
                f"kernel experts {name}, any rows: same bits",
                partial(expert_cases.check_tokens_alone, TritonOps()), device, dtype,
                kernel_shapes.rows_of_experts(device),
            ),
            check_of(
                f"kernel paged_attention {name}",
                attention_cases.check_paged_attention, device, dtype, kernel_shapes.attention(device, dtype),
            ),
            check_of(
                f"kernel paged_attention {name}, any cut: same bits",
                attention_cases.check_cuts_of_attention, device, dtype, kernel_shapes.cuts(device),
            ),
            check_of(
                f"kernel paged_attention {name}, any split: same bits",
                attention_cases.check_splits_of_attention, device, dtype, kernel_shapes.splits(device, dtype),
            ),
        ]  # fmt: skip
    rows.append(
        check_of("kernel soft_cap", cases.check_soft_cap, device, torch.float32, kernel_shapes.soft_caps(device))
    )
    if device.type == "cuda":
        name = "kernel rope_and_write and attention above 2**31 elements"
        rows.append(Check(name, lambda: beyond_int32(device), alone=False))
    return rows


def product_checks(device: torch.device, name: str, dtype: torch.dtype, quantization: str | None) -> list[Check]:
    kernel = f"kernel linear {name}" + (f", {quantization}" if quantization else "")
    kinds: list[tuple[str, Callable[..., float], list[Shape]]] = [
        ("", product_cases.check_linear, kernel_shapes.products(device, dtype)),
        (", any rows: same bits", product_cases.check_rows_of_linear, kernel_shapes.rows_of_products(device)),
        (", any path: same bits", product_cases.check_paths_of_linear, kernel_shapes.paths_of_products(device, dtype)),
    ]
    return [
        check_of(kernel + what, compare, device, dtype, [{**shape, "quantization": quantization} for shape in shapes])
        for what, compare, shapes in kinds
    ]


def check_of(
    name: str,
    compare: Callable[..., float],
    device: torch.device,
    dtype: torch.dtype,
    shapes: Iterable[Shape],
) -> Check:
    """Returns a check that calls `compare(device, dtype, **shape)` for each of `shapes` and reports the largest result.
    `compare` returns error / tolerance (0: bit for bit), or raises. Then the check raises RuntimeError."""

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
            torch.cuda.empty_cache()  # other processes use this GPU at the same time
        return f"{count} shapes, {'bit for bit' if worst == 0.0 else f'worst error {worst:.2f} of the tolerance'}"

    return Check(name, run, alone=False)


def beyond_int32(device: torch.device) -> str:
    """Asserts that writing and reading slots beyond 2**31 elements of the cache gives the bits of a small cache.
    Returns the number of blocks as text, or a Note if the GPU has too little free memory."""
    block_size, kv_heads, head_dim, group = 16, 8, 128, 2
    per_block = block_size * kv_heads * head_dim
    num_blocks = 2**31 // per_block + 8
    needed = 2 * 2 * num_blocks * per_block + 2**30
    free, _ = torch.cuda.mem_get_info(device)
    if free < needed:
        return Note(f"skipped: needs {needed >> 20} MiB, {free >> 20} are free")
    dtype = torch.bfloat16
    caches = [torch.empty(num_blocks, block_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(2)]
    lens, own = [(30, 0)], torch.tensor([num_blocks - 1, num_blocks - 2], device=device)
    small = attention_cases.attention_case(device, dtype, lens, kv_heads, group, head_dim, block_size)
    qkv = cases.randn(device, dtype, 30, (group + 2) * kv_heads * head_dim, seed=8)
    positions = torch.arange(30, device=device)
    table = torch.ones(30, head_dim, device=device)
    slots = own[positions // block_size] * block_size + positions % block_size
    rope.rope_and_write(qkv, None, cases.EPS, (table, table), positions, (caches[0], caches[1]), slots)
    few = [torch.zeros(2, block_size, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(2)]
    rope.rope_and_write(qkv, None, cases.EPS, (table, table), positions, (few[0], few[1]), positions)
    value = qkv[:, -kv_heads * head_dim :].view(30, kv_heads, head_dim)
    assert torch.equal(few[1].flatten(0, 1)[:30], value), "the values of a small cache differ"
    for cache, small_cache in zip(caches, few, strict=True):
        found, expected = cache[own].flatten(0, 1)[:30], small_cache.flatten(0, 1)[:30]
        assert torch.equal(found, expected), "rope_and_write wrote to other slots"
    starts, length = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([0, 30], [30]))
    bounds = 0, 30, 30  # decodes, new tokens, length
    outs = [
        attention.paged_attention(small.query, keys, values, table[None].int(), starts, length, *bounds, head_dim**-0.5)
        for (keys, values), table in ((caches, own), (few, torch.arange(2, device=device)))
    ]
    assert torch.equal(*outs), "attention differs from attention over a small cache"
    return f"{num_blocks} blocks, bit for bit"
