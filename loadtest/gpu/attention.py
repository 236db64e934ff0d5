"""Times of attention at the head shapes of Qwen3-0.6B and Qwen3-8B in bf16. CUDA only; asserts nothing.

Decode attention reads the KV once: its bytes per second are compared with the memory rate (limits.py). Attention of a
prompt chunk is counted in operations, 4 for each element of a query and each key that the mask lets it see.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gpu import attention
from loadtest.gpu.limits import limits
from loadtest.gpu.shapes import BLOCK_SIZE, DTYPE, HEAD_DIM, KV_HEADS, MAX_LENGTH, SHAPES
from loadtest.gpu.table import Check, Note
from loadtest.gpu.timings import median_us

CHUNK = 2048


def checks(device: torch.device) -> list[Check]:
    decode = [
        Check(
            f"time attention {model} decode, {batch} x {context}",
            functools.partial(decode_attention, device, shape.heads, batch, context),
        )
        for model, shape in SHAPES.items()
        for context in (512, 4096, 32768)
        for batch in (1, 8, 32, 256)
    ]
    prefill = [
        Check(
            f"time attention {model}, chunk of {CHUNK} after {context}",
            functools.partial(prefill_attention, device, shape.heads, context),
        )
        for model, shape in SHAPES.items()
        for context in (0, 8192)
    ]
    return [*decode, *prefill]


def attention_call(device: torch.device, heads: int, batch: int, query_len: int, context: int) -> Callable[[], Tensor]:
    """Returns a function that computes attention of one layer for `batch` requests, each with `query_len` new tokens
    after `context` tokens, on shuffled blocks.

    The bound of the lengths is MAX_LENGTH, as in a CUDA graph.
    """
    length = query_len + context
    per_request = -(-length // BLOCK_SIZE)
    tables = torch.randperm(batch * per_request, device=device).int().view(batch, per_request)
    size = (batch * per_request, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    keys, values = (torch.empty(size, dtype=DTYPE, device=device).normal_() for _ in range(2))
    query = torch.randn(batch * query_len, heads, HEAD_DIM, dtype=DTYPE, device=device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * query_len
    lens = torch.full((batch,), length, dtype=torch.int32, device=device)
    bounds = query_len, MAX_LENGTH
    return lambda: attention.paged_attention(query, keys, values, tables, starts, lens, *bounds, HEAD_DIM**-0.5)


def decode_attention(device: torch.device, heads: int, batch: int, context: int) -> str:
    reached = limits(device).memory
    size = 2 * batch * context * KV_HEADS * HEAD_DIM * DTYPE.itemsize
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if free < size + 2**30:
        return Note(f"skipped: needs {(size >> 20) + 1024} MiB, {free >> 20} are free")
    us = median_us(device, attention_call(device, heads, batch, 1, context - 1))
    return f"{us:.1f} us, {size / us / 1000:.0f} GB/s of KV, {size / us * 1e6 / reached:.0%} of the memory rate"


def prefill_attention(device: torch.device, heads: int, context: int) -> str:
    us = median_us(device, attention_call(device, heads, 1, CHUNK, context))
    seen = CHUNK * context + CHUNK * (CHUNK + 1) // 2  # pairs of query and key
    rate = 4 * seen * heads * HEAD_DIM / us * 1e6
    return f"{us:.1f} us, {rate / 1e12:.0f} TFLOP/s, {rate / limits(device).matrix:.0%} of the matrix rate"
