"""What a worker's memory is made of: weights, what its largest step takes, the KV cache, and what stays free.

What the largest step takes is computed from shapes; on a device where it takes no seconds it is run as well
(building.py). Tests run it for several shapes and compare. docs/decisions/0016-memory.md says why.
"""

import gc
import logging
from dataclasses import dataclass

import torch

from engine_core.worker_messages import BatchLimits
from kernels.interface import Ops
from services.machine import available_bytes
from services.options.declarations import WorkerOptions
from services.worker.device import GRAPH_SIZES
from services.worker.errors import ModelError
from services.worker.kv_cache import request_length
from services.worker.models.config import DecoderConfig
from services.worker.models.parameters import num_weight_bytes
from services.worker.sampler import GROUP_BYTES, group_size

log = logging.getLogger(__name__)
CPU_SHARE = 0.5  # of what is free beside a step: the KV cache's, where nothing is said
GPU_DEFAULT_UTILIZATION = 0.9
INPUT_BYTES = 128  # of a token of the step: its id, position, slot and row, and what they are computed from
LOGIT_BYTES = 8  # itself and its penalised copy, in float32
MARGIN = 1.15  # what allocators lose between large blocks
BASE_BYTES = 96 * 1024**2  # what libraries allocate at their first call, stacks, messages, small blocks


@dataclass(frozen=True)
class Memory:
    """Bytes. `budget` is what the KV cache may take, `free` what there is beside the weights."""

    weights: int
    step: int
    free: int
    budget: int

    def log_summary(self, kv_cache: int) -> None:
        parts = {"weights": self.weights, "the largest step": self.step, "KV cache": kv_cache}
        told = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items())
        log.info("memory: %s; %.2f GB are kept free", told, (self.free - self.step - kv_cache) / 1e9)


def plan_memory(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    options: WorkerOptions,
    limits: BatchLimits,
    step: int,
) -> Memory:
    """Once the weights are loaded; `step` is what the largest one takes, in bytes.

    Raises ModelError when not even that fits beside them.
    """
    weights = num_weight_bytes(config, dtype.itemsize, dtype.itemsize if options.quantization is None else 1)
    free = available_bytes() if device.type == "cpu" else _free_gpu_bytes(device, options)
    if step >= free:
        raise ModelError(
            f"a step with --max-num-batched-tokens {limits.max_num_batched_tokens} and --max-num-seqs"
            f" {limits.max_num_seqs} may take {step} bytes, but {free} are free beside the weights: lower one of them"
        )
    budget = options.kv_cache_memory_bytes
    if budget is None:
        budget = int((free - step) * (CPU_SHARE if device.type == "cpu" else 1.0))
    return Memory(weights, step, free, budget)


def check_fits(memory: Memory, kv_cache: int) -> None:
    """Raises ModelError for a KV cache, in bytes, that a busy server could not fill."""
    if memory.step + kv_cache > memory.free:
        raise ModelError(
            f"--kv-cache-memory-bytes: the cache would take {kv_cache} bytes and a step up to {memory.step}, but"
            f" {memory.free} are free beside the weights"
        )


def step_bytes(
    config: DecoderConfig,
    dtype: torch.dtype,
    ops: Ops,
    options: WorkerOptions,
    limits: BatchLimits,
    graphs: bool = False,
) -> int:
    """The most that any step takes beside weights and KV cache, with the batch's own state.

    Of T tokens and S sampled rows; what lives at once is read off decoder.py, model_runner.py and sampler.py.
    """
    tokens, rows = limits.max_num_batched_tokens, min(limits.max_num_seqs, limits.max_num_batched_tokens)
    length = request_length(config, options.max_model_len)
    blocks = -(-length // options.block_size)
    state = limits.max_num_seqs * (4 * (length + 1) + 4 * blocks)
    inputs = tokens * INPUT_BYTES + 3 * rows * 4 * blocks
    hidden, vocab = config.hidden_size, config.vocab_size
    forward = _forward_bytes(config, dtype, ops, tokens, length)
    if graphs:  # they keep what they work in, which is the same for all of them
        forward += _forward_bytes(config, dtype, ops, min(rows, GRAPH_SIZES[-1]), length)
    # Beside the hidden states of all tokens.
    width = max(vocab, length)
    sampling = 2 * tokens * hidden * dtype.itemsize + rows * vocab * LOGIT_BYTES
    sampling += max(ops.draw_scratch_bytes(rows, vocab), min(rows, group_size(width)) * width * GROUP_BYTES)
    # Added up, for the compiled layers keep their room while a token is drawn.
    return state + int(MARGIN * (inputs + forward + sampling)) + BASE_BYTES


def _forward_bytes(config: DecoderConfig, dtype: torch.dtype, ops: Ops, tokens: int, length: int) -> int:
    """Of so many tokens through a layer: hidden, residual and their norm, qkv, queries and their mixed values; and the
    largest of what comes beside them: a norm's result, the next layer's qkv, or gate and up with their product."""
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    hidden, query = config.hidden_size, heads * head_dim
    qkv = query + 2 * kv_heads * head_dim
    largest = max(2 * hidden, qkv, 3 * config.intermediate_size)
    widest = max(2 * config.intermediate_size, qkv, hidden)
    scratch = ops.scratch_bytes(tokens, widest, heads, kv_heads, head_dim, length, dtype)
    return tokens * dtype.itemsize * (3 * hidden + qkv + 2 * query + largest) + scratch


def _free_gpu_bytes(device: torch.device, options: WorkerOptions) -> int:
    """What --gpu-memory-utilization leaves beside all that is in use. Raises ModelError when that is nothing."""
    # Of an engine before this one, of loading, of the trial: what torch keeps looks taken. No graph lives now.
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    if options.kv_cache_memory_bytes is not None:
        return free
    utilization = options.gpu_memory_utilization or GPU_DEFAULT_UTILIZATION
    left = int(total * utilization) - (total - free)
    if left <= 0:
        raise ModelError(f"--gpu-memory-utilization {utilization}: the weights alone take {total - free} bytes")
    return left
