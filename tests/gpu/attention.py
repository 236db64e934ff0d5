"""How long attention takes, at the head shapes of Qwen3-0.6B and Qwen3-8B in bf16. CUDA only; nothing can be wrong.

A decode step's attention reads the KV once: its bytes over the time, beside the bandwidth that a copy reaches here. A
chunk's attention is counted in products, 4 flop for each element of a query and each key that it sees.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.gpu import attention
from tests.gpu.table import Check, Note
from tests.gpu.timings import median_us

Heads = tuple[int, int, int]  # heads, KV heads, head size
MODELS: dict[str, Heads] = {"0.6B": (16, 8, 128), "8B": (32, 8, 128)}
MODEL_LENGTH = 40960  # the bound on a request's length that a replayed graph has
BLOCK_SIZE = 16
DTYPE = torch.bfloat16
COPIED_BYTES = 2**30
CHUNK = 2048


def checks(device: torch.device) -> list[Check]:
    decode = [
        Check(
            f"time attention {model} decode, {batch} x {context}",
            functools.partial(decode_attention, device, heads, batch, context),
        )
        for model, heads in MODELS.items()
        for context in (512, 4096, 32768)
        for batch in (1, 8, 32, 256)
    ]
    prefill = [
        Check(
            f"time attention {model}, chunk of {CHUNK} after {context}",
            functools.partial(prefill_attention, device, heads, context),
        )
        for model, heads in MODELS.items()
        for context in (0, 8192)
    ]
    copy = Check("time copy", lambda: f"{bandwidth(device):.0f} GB/s, reads and writes")
    return [copy, *decode, *prefill]


@functools.cache
def bandwidth(device: torch.device) -> float:
    """GB/s, of 10^9 bytes: read and written by a copy."""
    source, target = (torch.empty(COPIED_BYTES, dtype=torch.int8, device=device) for _ in range(2))
    return 2 * COPIED_BYTES / median_us(device, lambda: target.copy_(source)) / 1000


def attention_call(
    device: torch.device, shape: Heads, batch: int, query_len: int, context: int
) -> Callable[[], Tensor]:
    """`batch` requests of `query_len` new tokens after `context`, on shuffled blocks."""
    (heads, kv_heads, head_dim), length = shape, query_len + context
    per_request = -(-length // BLOCK_SIZE)
    tables = torch.randperm(batch * per_request, device=device).int().view(batch, per_request)
    size = (batch * per_request, BLOCK_SIZE, kv_heads, head_dim)
    keys, values = (torch.empty(size, dtype=DTYPE, device=device).normal_() for _ in range(2))
    query = torch.randn(batch * query_len, heads, head_dim, dtype=DTYPE, device=device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * query_len
    lens = torch.full((batch,), length, dtype=torch.int32, device=device)
    bounds = query_len, MODEL_LENGTH
    return lambda: attention.paged_attention(query, keys, values, tables, starts, lens, *bounds, head_dim**-0.5)


def decode_attention(device: torch.device, shape: Heads, batch: int, context: int) -> str:
    _, kv_heads, head_dim = shape
    size = 2 * batch * context * kv_heads * head_dim * DTYPE.itemsize
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if free < size + 2**30:
        return Note(f"left out: needs {(size >> 20) + 1024} MiB, {free >> 20} are free")
    reached = bandwidth(device)
    us = median_us(device, attention_call(device, shape, batch, 1, context - 1))
    return f"{us:.1f} us, {size / us / 1000:.0f} GB/s of KV, {size / us / 1000 / reached:.0%} of the bandwidth"


def prefill_attention(device: torch.device, shape: Heads, context: int) -> str:
    heads, _, head_dim = shape
    us = median_us(device, attention_call(device, shape, 1, CHUNK, context))
    seen = CHUNK * context + CHUNK * (CHUNK + 1) // 2  # pairs of query and key
    return f"{us:.1f} us, {4 * seen * heads * head_dim / us / 1e6:.1f} TFLOP/s"
