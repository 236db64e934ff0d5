"""How long kernels and steps take, at the shape of Qwen3-0.6B in bf16. CUDA only; nothing here can be wrong.

A kernel's time is the median between two CUDA events. The GPU is kept busy while the host queues them, or the host's
time would be measured, and the L2 cache is overwritten before each call, as another layer would.
"""

import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import EngineLimits
from kernels import kv_write, norm_rope, paged_attention
from services.config import WorkerOptions
from tests.gpu.table import Check
from tests.worker.in_process import InProcess

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, BLOCK_SIZE = 16, 8, 128, 1024, 16
DTYPE = torch.bfloat16
REPEATS = 20
FLUSH_BYTES = 256 * 2**20
BUSY_CYCLES = 20_000_000  # about 10 ms
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": HIDDEN, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
    "max_position_embeddings": 40960, "tie_word_embeddings": True, "rope_theta": 1000000.0, "dtype": "bfloat16",
    "eos_token_id": 151645,
}  # fmt: skip


def checks(device: torch.device) -> list[Check]:
    decode = [
        Check(
            f"time attention decode, {batch} x {context}", functools.partial(decode_attention, device, batch, context)
        )
        for batch, context in ((1, 1024), (1, 16384), (8, 4096), (64, 1024), (64, 4096), (256, 1024))
    ]
    prefill = [
        Check(f"time attention, chunk of 2048 after {context}", functools.partial(attention_prefill, device, context))
        for context in (0, 8192)
    ]
    small = [
        Check(f"time kv_write, norm, rope, {tokens} tokens", functools.partial(small_kernels, device, tokens))
        for tokens in (1, 64, 2048)
    ]
    steps = [
        Check(f"time decode step 0.6B eager, {batch} x 512", functools.partial(decode_step, device, batch))
        for batch in (1, 16, 128)
    ]
    return [*decode, *prefill, *small, *steps]


def median_us(device: torch.device, call: Callable[[], object]) -> float:
    """Microseconds of one call on the GPU."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    for _ in range(3):
        call()
    torch.cuda.synchronize(device)
    pairs = []
    torch.cuda._sleep(BUSY_CYCLES)
    for _ in range(REPEATS):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize(device)
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) * 1000


def attention_call(device: torch.device, query_len: int, batch: int, context: int) -> Callable[[], Tensor]:
    """`batch` requests of `query_len` new tokens after `context`, on shuffled blocks."""
    length = query_len + context
    per_request = -(-length // BLOCK_SIZE)
    tables = torch.randperm(batch * per_request, device=device).int().view(batch, per_request)
    size = (batch * per_request, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    keys, values = (torch.randn(size, dtype=DTYPE, device=device) for _ in range(2))
    query = torch.randn(batch * query_len, HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * query_len
    lens = torch.full((batch,), length, dtype=torch.int32, device=device)
    return lambda: paged_attention.paged_attention(query, keys, values, tables, starts, lens, query_len, HEAD_DIM**-0.5)


def decode_attention(device: torch.device, batch: int, context: int) -> str:
    """The KV is read once: its bytes over the time."""
    us = median_us(device, attention_call(device, 1, batch, context - 1))
    size = 2 * batch * context * KV_HEADS * HEAD_DIM * DTYPE.itemsize
    return f"{us:.1f} us, {size / us / 1000:.0f} GB/s of KV"


def attention_prefill(device: torch.device, context: int) -> str:
    chunk = 2048
    us = median_us(device, attention_call(device, chunk, 1, context))
    seen = chunk * context + chunk * (chunk + 1) // 2  # pairs of query and key
    return f"{us:.1f} us, {4 * seen * HEADS * HEAD_DIM / us / 1e6:.1f} TFLOP/s"


def small_kernels(device: torch.device, tokens: int) -> str:
    hidden, residual = (torch.randn(tokens, HIDDEN, dtype=DTYPE, device=device) for _ in range(2))
    weight = torch.ones(HIDDEN, dtype=DTYPE, device=device)
    qkv = torch.randn(tokens, HEADS + 2 * KV_HEADS, HEAD_DIM, dtype=DTYPE, device=device)
    query, key, value = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], dim=1)
    caches = [torch.zeros(256, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype=DTYPE, device=device) for _ in range(2)]
    slots = torch.randperm(256 * BLOCK_SIZE, device=device)[:tokens]
    cos_sin, positions = torch.randn(tokens, HEAD_DIM, device=device), torch.arange(tokens, device=device)
    head_weight = torch.ones(HEAD_DIM, dtype=DTYPE, device=device)
    times = {
        "kv_write": median_us(device, lambda: kv_write.write_kv(key, value, caches[0], caches[1], slots)),
        "add_rms_norm": median_us(device, lambda: norm_rope.add_rms_norm(hidden, residual, weight, 1e-6)),
        "norm_rope": median_us(device, lambda: norm_rope.norm_rope(query, head_weight, 1e-6, cos_sin, positions)),
    }
    return ", ".join(f"{name} {us:.1f} us" for name, us in times.items())


@functools.cache
def engine_06b(device: torch.device) -> InProcess:
    path = Path(tempfile.mkdtemp())
    (path / "config.json").write_text(json.dumps(QWEN3_06B))
    options = WorkerOptions(model=str(path), device=device.type, load_format="dummy", max_model_len=1024)
    return InProcess(path, options, EngineLimits(1, 128, 8192), prefix_caching=False)


def decode_step(device: torch.device, batch: int) -> str:
    """Plan to sampled ids, scheduler included, all on the host's clock; each step ends with the ids on the host."""
    engine = engine_06b(device)
    sampling = SamplingParams(max_tokens=48, temperature=0.0)
    answers = [engine.add([(7 * row + place) % 1000 for place in range(512)], sampling) for row in range(batch)]
    while any(len(answer.token_ids) < 8 for answer in answers):
        engine.step()
    times = []
    while all(len(answer.token_ids) < 40 for answer in answers):
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    while engine.step():
        pass
    middle = statistics.median(times)
    return f"{middle * 1000:.2f} ms, {batch / middle:.0f} tokens/s"
