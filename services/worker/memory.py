"""The worker's memory plan: weights, peak of a step, KV cache, free memory.

The peak of a step is computed from shapes. On a GPU a profile run measures it as well (building.py), and the larger
value counts. Tests compare it with measured peaks. docs/decisions/0016-memory.md
"""

import gc
import logging
from dataclasses import dataclass

import torch

from engine_core.kv_cache_size import KvCacheSize
from engine_core.step_plan import MAX_SCORED_TOKENS
from engine_core.worker_messages import BatchLimits
from kernels.interface import Ops
from services.machine import available_bytes
from services.options.declarations import WorkerOptions
from services.worker.device import GRAPH_SIZES
from services.worker.errors import ModelError
from services.worker.kv_cache import block_bytes, request_length
from services.worker.logits import pipeline
from services.worker.logprob_limit import logprob_width
from services.worker.logprobs import ENTRY_BYTES
from services.worker.models.description import Description, Layer, Mixture
from services.worker.models.kv_layout import kv_layout
from services.worker.models.rope import table_bytes
from services.worker.models.tensors import num_weight_bytes
from services.worker.row_groups import GROUP_BYTES, group_size

log = logging.getLogger(__name__)
CPU_SHARE = 0.5  # the KV cache's share of the memory that weights and a step leave free, by default
GPU_DEFAULT_UTILIZATION = 0.9
INPUT_BYTES = 128  # per token of a step: id, position, slot, row, and temporaries
LOGIT_BYTES = 8  # per logit: float32, and its copy that logits processors change
MARGIN = 1.15  # fragmentation of allocators
BASE_BYTES = 96 * 1024**2  # libraries' first allocations, stacks, messages, small blocks


@dataclass(frozen=True)
class Memory:
    """The memory plan of a worker, in bytes."""

    weights: int
    step: int  # peak of the largest step
    free: int  # what the weights leave; on a GPU, within --gpu-memory-utilization unless the cache's size is given
    budget: int  # limit of the KV cache

    def log_summary(self, kv_cache: int) -> None:
        """Logs one line: weights, peak of a step, KV cache of `kv_cache` bytes, and what stays free."""
        parts = {"weights": self.weights, "peak of a step": self.step, "KV cache": kv_cache}
        summary = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items())
        log.info("memory: %s; %.2f GB stay free", summary, (self.free - self.step - kv_cache) / 1e9)


def plan_memory(
    model: Description,
    dtype: torch.dtype,
    device: torch.device,
    options: WorkerOptions,
    limits: BatchLimits,
    step: int,
    is_first: bool = True,
) -> Memory:
    """Returns the memory plan; the weights must be loaded. `step`: peak of the largest step, in bytes. `is_first`: no
    worker before has set the KV cache's size. If one has, --gpu-memory-utilization is no limit.

    `budget` is --kv-cache-memory-bytes if given; else what the step leaves free, on a CPU CPU_SHARE of it. Raises
    ModelError if the step does not fit into the free memory.
    """
    weights = _weight_bytes(model, dtype, options.quantization)
    free = available_bytes() if device.type == "cpu" else _free_gpu_bytes(device, options, is_first)
    if step >= free:
        raise ModelError(
            f"a step with --max-num-batched-tokens {limits.max_num_batched_tokens} and --max-num-seqs"
            f" {limits.max_num_seqs} may take {step} bytes, but the weights leave {free} bytes free: lower one of them"
        )
    budget = options.kv_cache_memory_bytes
    if budget is None:
        budget = int((free - step) * (CPU_SHARE if device.type == "cpu" else 1.0))
    return Memory(weights, step, free, budget)


def check_weights_fit(
    model: Description,
    dtype: torch.dtype,
    device: torch.device,
    options: WorkerOptions,
    first: KvCacheSize | None = None,
) -> None:
    """Raises ModelError if the free memory has no room for the weights, which are not loaded yet, for the tables of the
    rotary embedding, and for the KV cache of --kv-cache-memory-bytes, or else of one block per KV group.

    `first`: the KV cache of the server's first worker, if there was one. The next may be as small as one request.
    """
    weights, tables = _weight_bytes(model, dtype, options.quantization), _table_bytes(model, options)
    layout = kv_layout(model, request_length(model, options.max_model_len))
    per_block = block_bytes(model, layout, options.block_size, dtype)
    if first is None:
        cache = options.kv_cache_memory_bytes or len(layout.windows) * per_block
    else:
        cache = first.smallest * per_block
    free = available_bytes() if device.type == "cpu" else _free_gpu_bytes(device, options, first is None)
    if weights + tables + cache <= free:
        return
    eight_bit = _weight_bytes(model, dtype, "int8")
    advice = "use a smaller model" if weights + cache > free else "lower --max-model-len"
    if eight_bit + tables + cache <= free:
        advice += f", or --quantization int8: its weights take {eight_bit / 1e9:.2f} GB"
    raise ModelError(
        f"the weights take {weights / 1e9:.2f} GB, the positions {tables / 1e9:.2f} GB and the KV cache at least"
        f" {cache / 1e9:.2f} GB, but {free / 1e9:.2f} GB of memory are free: {advice}"
    )


def check_fits(memory: Memory, kv_cache: int) -> None:
    """Raises ModelError if a KV cache of `kv_cache` bytes and the largest step do not fit together."""
    if memory.step + kv_cache > memory.free:
        raise ModelError(
            f"the KV cache would take {kv_cache} bytes and a step up to {memory.step}, but the weights leave"
            f" {memory.free} bytes free: lower --kv-cache-memory-bytes or --max-model-len"
        )


def step_bytes(
    model: Description,
    dtype: torch.dtype,
    ops: Ops,
    options: WorkerOptions,
    limits: BatchLimits,
    graphs: bool = False,
) -> int:
    """Returns an upper bound of a step's peak memory in bytes, with the batch's state, without weights and KV cache.

    For max_num_batched_tokens tokens and as many sampled rows as possible; with `graphs`, their pool too. The driver's
    memory is not counted. Raises ModelError if --max-model-len is too large. Which tensors are live at the same time
    follows from decoder.py, model_runner.py, sampler.py and what that calls: change this formula with them.
    """
    tokens, rows = limits.max_num_batched_tokens, min(limits.max_num_seqs, limits.max_num_batched_tokens)
    length = request_length(model, options.max_model_len)
    blocks = -(-length // options.block_size)
    groups = len(kv_layout(model, length).windows)
    state = limits.max_num_seqs * (4 * (length + 1) + 4 * groups * blocks + pipeline.state_bytes(model.vocab_size))
    inputs = tokens * (INPUT_BYTES + 2 * 8 * (groups - 1)) + 3 * groups * rows * 4 * blocks
    hidden, vocab = model.hidden_size, model.vocab_size
    forward = _forward_bytes(model, dtype, ops, tokens, length)
    if graphs:  # all graphs share one memory pool, which they keep
        forward += _forward_bytes(model, dtype, ops, min(rows, GRAPH_SIZES[-1]), length)
    # The hidden states of all tokens are still allocated.
    sampling = 2 * tokens * hidden * dtype.itemsize + rows * vocab * LOGIT_BYTES
    scored = min(MAX_SCORED_TOKENS + limits.max_num_seqs, tokens)  # the head runs over as many rows as are sampled
    sampling += (rows + scored) * logprob_width(options, vocab) * ENTRY_BYTES + 2 * scored * hidden * dtype.itemsize
    logprobs = min(rows, group_size(vocab)) * vocab * GROUP_BYTES
    sampling += max(ops.draw_scratch_bytes(rows, vocab), pipeline.scratch_bytes(rows, vocab, length), logprobs)
    # The sum, not the maximum: the compiled layers keep their buffers during sampling.
    return state + int(MARGIN * (inputs + forward + sampling)) + BASE_BYTES


def _weight_bytes(model: Description, dtype: torch.dtype, quantization: str | None) -> int:
    return num_weight_bytes(model, dtype.itemsize, dtype.itemsize if quantization is None else 1)


def _table_bytes(model: Description, options: WorkerOptions) -> int:
    ropes = {layer.attention.rope for layer in model.layers if layer.attention.rope is not None}
    length = request_length(model, options.max_model_len)
    return sum(table_bytes(rope, length) for rope in ropes)


def _forward_bytes(model: Description, dtype: torch.dtype, ops: Ops, tokens: int, length: int) -> int:
    """Returns a layer's peak in bytes for `tokens` tokens of requests up to `length` tokens: hidden, residual and norm,
    qkv, queries and attention output, the largest other tensor (a norm's result, the next layer's qkv, or the MLP's
    inner activation with its result), and the kernels' temporaries."""
    return max(_layer_bytes(model.hidden_size, layer, dtype, ops, tokens, length) for layer in {*model.layers})


def _layer_bytes(hidden: int, layer: Layer, dtype: torch.dtype, ops: Ops, tokens: int, length: int) -> int:
    attention, mlps = layer.attention, layer.mlps
    inner, size = max(mlp.inner_size for mlp in mlps), max(mlp.size for mlp in mlps)
    query, qkv = attention.query_size, attention.qkv_size
    largest = max(2 * hidden, qkv, inner + size)
    widest = max(inner, qkv, hidden)
    heads, kv_heads, head_dim = attention.heads, attention.kv_heads, attention.head_dim
    scratch = ops.scratch_bytes(tokens, widest, heads, kv_heads, head_dim, length, dtype)
    mixed = _mixture_bytes(hidden, layer.mlp, dtype, ops, tokens) if isinstance(layer.mlp, Mixture) else 0
    return tokens * dtype.itemsize * (3 * hidden + qkv + 2 * query + largest) + scratch + mixed


def _mixture_bytes(hidden: int, mixture: Mixture, dtype: torch.dtype, ops: Ops, tokens: int) -> int:
    """Returns the bytes of a mixture's temporaries: those of its experts, their ids and weights, and the logits."""
    pairs, expert = tokens * mixture.router.top_k, mixture.expert
    experts = ops.mixture_bytes(pairs, hidden, expert.inner_size, expert.size, dtype)
    return experts + pairs * (4 + 4) + tokens * 4 * mixture.count


def _free_gpu_bytes(device: torch.device, options: WorkerOptions, is_first: bool = True) -> int:
    """Returns the device's free bytes; without --kv-cache-memory-bytes, only those within --gpu-memory-utilization, if
    `is_first`.

    Empties torch's caches first. Raises ModelError if the utilization leaves none.
    """
    # Return cached memory of loading, the profile run and an earlier engine first. No graph is alive here.
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    if options.kv_cache_memory_bytes is not None or not is_first:
        return free
    utilization = options.gpu_memory_utilization or GPU_DEFAULT_UTILIZATION
    left = int(total * utilization) - (total - free)
    if left <= 0:
        raise ModelError(f"--gpu-memory-utilization {utilization}: the weights alone take {total - free} bytes")
    return left
