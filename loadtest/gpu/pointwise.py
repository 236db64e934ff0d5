"""Times of the pointwise kernels in bf16 and of the draw, at the shape of Qwen3-0.6B. CUDA only; asserts nothing.

Bytes per second are compared with the memory rate (limits.py). For few tokens, the time is that of the launch.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gpu import activation, norm, rope, sample
from kernels.interface import Draws
from loadtest.gpu.limits import limits
from loadtest.gpu.shapes import BLOCK_SIZE, DTYPE, HEAD_DIM, KV_HEADS, SHAPES, VOCAB
from loadtest.gpu.table import Check
from loadtest.gpu.timings import median_us
from tests.kernels.draw_cases import draws_of

SHAPE = SHAPES["0.6B"]
TOKENS = (1, 32, 256, 2048)
ROWS = (1, 32, 256)
KINDS = {"greedy": (0.0, 1.0, 0.0, 0), "sampled": (1.0, 1.0, 0.0, 0), "top-k 50, top-p 0.9": (1.0, 0.9, 0.0, 50)}
Kernel = tuple[Callable[[], object], int]  # a call, and the fewest bytes that it must move


def checks(device: torch.device) -> list[Check]:
    kernels = [
        Check(f"time {name}, {tokens} tokens", functools.partial(one, device, case, tokens))
        for name, case in (("add_norm", norms), ("rope_and_write", ropes), ("activate", gates))
        for tokens in TOKENS
    ]
    draws = [
        Check(
            f"time draw {name}, {rows} x {VOCAB}", functools.partial(one, device, functools.partial(drawn, kind), rows)
        )
        for name, kind in KINDS.items()
        for rows in ROWS
    ]
    return [*kernels, *draws]


def one(device: torch.device, case: Callable[[torch.device, int], Kernel], count: int) -> str:
    call, size = case(device, count)
    us = median_us(device, call)
    return f"{us:.1f} us, {size / us * 1e6 / limits(device).memory:.0%} of the memory rate"


def randn(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, device=device)


def norms(device: torch.device, tokens: int) -> Kernel:
    hidden, residual = (randn(device, tokens, SHAPE.hidden) for _ in range(2))
    weight = torch.randn(SHAPE.hidden, device=device)
    return lambda: norm.add_norm(hidden, residual, 1.0, weight, None, 1e-6, False), 4 * hidden.nbytes


def ropes(device: torch.device, tokens: int) -> Kernel:
    qkv = randn(device, tokens, (SHAPE.heads + 2 * KV_HEADS) * HEAD_DIM)
    head_norms = torch.randn(HEAD_DIM, device=device), torch.randn(HEAD_DIM, device=device)
    size = (256, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    cache = randn(device, *size), randn(device, *size)
    slots = torch.randperm(256 * BLOCK_SIZE, device=device)[:tokens]
    table, positions = torch.randn(tokens, HEAD_DIM, device=device), torch.arange(tokens, device=device)
    call = functools.partial(rope.rope_and_write, qkv, head_norms, 1e-6, (table, table), positions, cache, slots)
    return call, 2 * qkv.nbytes + table.nbytes


def gates(device: torch.device, tokens: int) -> Kernel:
    gate_up = randn(device, tokens, 2 * SHAPE.intermediate)
    return lambda: activation.activate(gate_up, "silu", True), gate_up.nbytes * 3 // 2


def drawn(kind: tuple[float, float, float, int], device: torch.device, rows: int) -> Kernel:
    """Returns a function that draws `rows` tokens, and the bytes of one read of the logits: without a mask, one read
    serves the draw and the check for NaN. `kind` is (temperature, top_p, min_p, top_k)."""
    logits = 3 * torch.randn(rows, VOCAB, device=device)
    draws: Draws = draws_of([kind] * rows)
    return lambda: sample.draw(logits, logits, draws), logits.nbytes
