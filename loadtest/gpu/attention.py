"""Times of attention at the head shapes of Qwen3-0.6B and Qwen3-8B in bf16. CUDA only; asserts nothing.

Decode attention reads the KV once: its bytes per second are compared with the memory rate (limits.py). Attention of a
prompt chunk is counted in operations, 4 for each element of a query and each key that the mask lets it see.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gpu import attention
from kernels.gpu.attention_tiling import Tiling, choose_num_splits, tiling_of
from loadtest.gpu.ideal import Batch, Work
from loadtest.gpu.limits import limits
from loadtest.gpu.shapes import BLOCK_SIZE, DTYPE, HEAD_DIM, KV_HEADS, MAX_LENGTH, SHAPES
from loadtest.gpu.table import Check, Measured, Note
from loadtest.gpu.timings import median_us

CHUNK = 2048
SMALL_HEADS, SMALL_HEAD_DIM = 1, 16  # KV heads and head size on a CPU; there are as many query heads for each


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


@dataclass(frozen=True)
class AttentionCase:
    """Inputs of attention of one layer for `batch` requests, each with `query_len` new tokens after `context` tokens.

    The bound of the lengths is `max_length`.
    """

    query: Tensor  # [batch * query_len, heads, head_dim]
    cache: tuple[Tensor, Tensor]  # keys and values [blocks, BLOCK_SIZE, kv_heads, head_dim]
    tables: Tensor  # [batch, blocks of a request], shuffled
    starts: Tensor  # [batch + 1] int32: of the queries
    lens: Tensor  # [batch] int32
    query_len: int
    context: int
    max_length: int

    @property
    def batch(self) -> int:
        return len(self.tables)

    @property
    def num_decodes(self) -> int:
        """Requests with one query."""
        return self.batch if self.query_len == 1 else 0

    @property
    def tiling(self) -> Tiling:
        heads, head_dim = self.query.shape[1:]
        return tiling_of(self.query.dtype, head_dim, heads // self.cache[0].shape[2])

    def __call__(self) -> Tensor:
        return attention.paged_attention(*self._arguments())

    def attend(self, tiling: Tiling) -> Tensor:
        """Returns the result by another tiling, with as many KV splits as now."""
        splits = choose_num_splits(self.num_decodes, self.cache[0].shape[2])
        return attention.attend(*self._arguments(), 0, 0.0, None, tiling, splits)

    def _arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int, int, float]:
        bounds = self.num_decodes, self.query_len, self.max_length
        scale = self.query.shape[2] ** -0.5
        return self.query, *self.cache, self.tables, self.starts, self.lens, *bounds, scale


def attention_case(device: torch.device, heads: int, batch: int, query_len: int, context: int) -> AttentionCase:
    """Returns random inputs. On a GPU the bound of the lengths is MAX_LENGTH, as in a CUDA graph; on a CPU heads are
    few and small, and the bound is the length."""
    length, kv_heads, head_dim, bound = query_len + context, KV_HEADS, HEAD_DIM, MAX_LENGTH
    if device.type != "cuda":
        heads, kv_heads, head_dim, bound = heads // KV_HEADS, SMALL_HEADS, SMALL_HEAD_DIM, length
    per_request = -(-length // BLOCK_SIZE)
    tables = torch.randperm(batch * per_request, device=device).int().view(batch, per_request)
    size = (batch * per_request, BLOCK_SIZE, kv_heads, head_dim)
    keys, values = (torch.empty(size, dtype=DTYPE, device=device).normal_() for _ in range(2))
    query = torch.randn(batch * query_len, heads, head_dim, dtype=DTYPE, device=device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * query_len
    lens = torch.full((batch,), length, dtype=torch.int32, device=device)
    return AttentionCase(query, (keys, values), tables, starts, lens, query_len, context, bound)


def limit_us(device: torch.device, case: AttentionCase) -> float:
    """Returns the µs to read the KV, or to do the operations, at the rates of limits.py."""
    size = Batch(((case.query_len, case.context),) * case.batch, case.batch)
    elements = case.query.shape[1] * case.query.shape[2]
    kv_elements = case.cache[0].shape[2] * case.cache[0].shape[3]
    return 1e6 * Work(2 * size.keys * kv_elements * DTYPE.itemsize, 4 * size.pairs * elements).seconds(limits(device))


def decode_attention(device: torch.device, heads: int, batch: int, context: int) -> Measured:
    size = 2 * batch * context * KV_HEADS * HEAD_DIM * DTYPE.itemsize
    reached = limits(device).memory
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if free < size + 2**30:
        return Note(f"skipped: needs {(size >> 20) + 1024} MiB, {free >> 20} are free")
    us = median_us(device, attention_case(device, heads, batch, 1, context - 1))
    share = size / us * 1e6 / reached
    text = f"{us:.1f} us, {size / us / 1000:.0f} GB/s of KV, {share:.0%} of the memory rate"
    return Measured(text, us=us, share=share)


def prefill_attention(device: torch.device, heads: int, context: int) -> Measured:
    case = attention_case(device, heads, 1, CHUNK, context)
    us = median_us(device, case)
    rate = 4 * Batch(((CHUNK, context),), 1).pairs * heads * HEAD_DIM / us * 1e6
    share = rate / limits(device).matrix
    return Measured(f"{us:.1f} us, {rate / 1e12:.0f} TFLOP/s, {share:.0%} of the matrix rate", us=us, share=share)
