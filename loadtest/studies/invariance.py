"""`python -m loadtest.studies.invariance`: the cost of batch invariance on a CPU, by kernel, in Qwen3-0.6B's shape.

Compares each tandem kernel with torch's fastest one for the same operation. They alternate in one process, with one
thread each; the times are medians. A negative cost is a gain.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.cpu.library import load
from kernels.cpu.ops import CpuOps
from kernels.interface import AttentionInputs

LAYER = [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)]
NUM_LAYERS = 8  # more weights than any cache holds
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 16, 8, 128, 16
ROUNDS = 7
Run = Callable[[], object]


def median_ms(runs: dict[str, Run]) -> dict[str, float]:
    """Returns the median ms of each run by name; the runs alternate."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(values[1:]) for name, values in times.items()}


def products(ops: CpuOps, rows: int) -> dict[str, Run]:
    weights = [torch.randn(n, k).bfloat16() for n, k in LAYER * NUM_LAYERS]
    packed = [ops.matrix(weight) for weight in weights]
    xs = {k: torch.randn(rows, k).bfloat16() for _, k in LAYER}
    mkldnn = torch.ops.mkldnn
    prepacked = [mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
    return {
        "tandem": lambda: [matrix.product(xs[w.shape[1]]) for matrix, w in zip(packed, weights, strict=True)],
        "F.linear": lambda: [F.linear(xs[w.shape[1]], w) for w in weights],
        "oneDNN, prepacked": lambda: [
            mkldnn._linear_pointwise(xs[w.shape[1]], p, None, "none", [], "")
            for p, w in zip(prepacked, weights, strict=True)
        ],
    }


def attention(ops: CpuOps, requests: int, queries: int, length: int) -> dict[str, Run]:
    """Returns a run of tandem's paged attention, and one of torch's fused attention over contiguous keys and values,
    for `requests` with `queries` new tokens each and `length` keys."""
    blocks = -(-length // BLOCK_SIZE)
    cache = ops.allocate_kv_cache(
        requests * blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM, torch.bfloat16, torch.device("cpu")
    )
    for part in cache:
        part.normal_()
    query = torch.randn(requests * queries, HEADS, HEAD_DIM).bfloat16()
    inputs = AttentionInputs(
        torch.empty(0),
        torch.arange(requests * blocks, dtype=torch.int32).view(requests, blocks),
        torch.arange(0, requests * queries + 1, queries, dtype=torch.int32),
        torch.full((requests,), length, dtype=torch.int32),
        num_decodes=requests if queries == 1 else 0,
        max_query_len=queries,
        max_seq_len=length,
    )
    q = query.view(requests, queries, HEADS, HEAD_DIM).transpose(1, 2).contiguous()
    k, v = (torch.randn(requests, KV_HEADS, length, HEAD_DIM).bfloat16() for _ in range(2))
    return {
        "tandem": lambda: ops.paged_attention(query, cache, inputs, HEAD_DIM**-0.5),
        "torch, fused": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=queries > 1, enable_gqa=True),
    }


def norm(ops: CpuOps, rows: int) -> dict[str, Run]:
    x, residual = (torch.randn(rows, 1024).bfloat16() for _ in range(2))
    weight = torch.ones(1024)
    return {
        "tandem": lambda: ops.add_norm(x, residual, 1.0, weight, None, 1e-6, False),
        "F.rms_norm": lambda: F.rms_norm(x + residual, (1024,), weight.bfloat16(), 1e-6),
    }


def activation(ops: CpuOps, rows: int) -> dict[str, Run]:
    gate_up = torch.randn(rows, 6144).bfloat16()

    def plain() -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    return {"tandem": lambda: ops.activate(gate_up, "silu", True), "F.silu": plain}


def main() -> None:
    torch.set_num_threads(1)
    ops = CpuOps(load())
    print(f"kernels: {ops.name}\n")
    print("| part | tandem ms | torch ms | cost |\n|---|---|---|---|")
    cases: list[tuple[str, Callable[[], dict[str, Run]]]] = [
        *((f"products, {rows} rows", partial(products, ops, rows)) for rows in (1, 8, 32, 128, 512)),
        ("attention, 1 request, 1 query, 1024 keys", partial(attention, ops, 1, 1, 1024)),
        ("attention, 32 requests, 1 query, 320 keys", partial(attention, ops, 32, 1, 320)),
        ("attention, 1 request, 512 queries", partial(attention, ops, 1, 512, 512)),
        *((f"add and norm, {rows} rows", partial(norm, ops, rows)) for rows in (1, 32, 512)),
        *((f"activation, {rows} rows", partial(activation, ops, rows)) for rows in (1, 32, 512)),
    ]
    with torch.inference_mode():
        for name, make in cases:
            times = median_ms(make())
            own = times.pop("tandem")
            best = min(times, key=lambda other: times[other])
            cost = 100 * (own / times[best] - 1)
            print(f"| {name} | {own:.3f} | {times[best]:.3f} ({best}) | {cost:+.0f}% |", flush=True)


if __name__ == "__main__":
    main()
