"""What a worker's memory is made of: weights, what its largest step takes, the KV cache, and what stays free.

The largest step is computed from shapes, not run: on a CPU that step takes seconds. Tests run it for several shapes and
compare. docs/decisions/0016-memory.md says what the figures stand on.
"""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from engine_core.worker_messages import EngineLimits
from kernels.interface import Ops
from services.config import WorkerOptions
from services.worker.errors import ModelError
from services.worker.models.config import DecoderConfig
from services.worker.models.parameters import num_weight_bytes

log = logging.getLogger(__name__)
CPU_SHARE = 0.5  # of what is free beside a step: the KV cache's, where nothing is said
GPU_DEFAULT_UTILIZATION = 0.9
INPUT_BYTES = 128  # of a token of the step: its id, position, slot and row, and what they are computed from
LOGIT_BYTES = 8  # itself and its penalised copy, in float32
SAMPLER_ROW_BYTES = 128  # of a logit of the one row that is filtered or ranked: sort, softmax and masks
MARGIN = 1.15  # what allocators lose between large blocks
BASE_BYTES = 96 * 1024**2  # what libraries allocate at their first call, stacks, messages, small blocks
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes. `budget` is what the KV cache may take, `free` what there is beside the weights."""

    weights: int
    step: int
    free: int
    budget: int

    def tell(self, kv_cache: int) -> None:
        parts = {"weights": self.weights, "the largest step": self.step, "KV cache": kv_cache}
        told = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items())
        log.info("memory: %s; %.2f GB are kept free", told, (self.free - self.step - kv_cache) / 1e9)


def plan_memory(
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    ops: Ops,
    options: WorkerOptions,
    limits: EngineLimits,
) -> Memory:
    """Once the weights are loaded. Raises ModelError when not even a step fits beside them."""
    weights = num_weight_bytes(config, dtype.itemsize, 1 if options.quantization == "int8" else dtype.itemsize)
    step = step_bytes(config, dtype, ops, options, limits)
    free = available_cpu_bytes() if device.type == "cpu" else _free_gpu_bytes(device, options)
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
    config: DecoderConfig, dtype: torch.dtype, ops: Ops, options: WorkerOptions, limits: EngineLimits
) -> int:
    """The most that any step takes beside weights and KV cache, with the batch's own state.

    Of T tokens and S sampled rows; what lives at once is read off decoder.py, model_runner.py and sampler.py.
    """
    tokens, rows = limits.max_num_batched_tokens, min(limits.max_num_seqs, limits.max_num_batched_tokens)
    length = options.max_model_len or config.max_position_embeddings
    blocks = -(-length // options.block_size)
    state = limits.max_num_seqs * (4 * (length + 1) + 4 * blocks)
    inputs = tokens * INPUT_BYTES + 3 * rows * 4 * blocks
    hidden, query, vocab = config.hidden_size, config.num_heads * config.head_dim, config.vocab_size
    qkv = query + 2 * config.num_kv_heads * config.head_dim
    # Through a layer: hidden, residual and their norm, qkv, the queries and their mixed values; and the largest of what
    # comes beside them, which is a norm's result, the next layer's qkv, or gate and up with their product.
    largest = max(2 * hidden, qkv, 3 * config.intermediate_size)
    forward = tokens * dtype.itemsize * (3 * hidden + qkv + 2 * query + largest)
    widest = max(2 * config.intermediate_size, qkv, hidden)
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    forward += ops.scratch_bytes(tokens, widest, heads, kv_heads, head_dim, length, dtype)
    # Beside the hidden states of all tokens.
    sampling = 2 * tokens * hidden * dtype.itemsize + rows * vocab * LOGIT_BYTES + vocab * SAMPLER_ROW_BYTES
    sampling += ops.draw_scratch_bytes(rows, vocab)
    # Added up, for the compiled layers keep their room while a token is drawn.
    return state + int(MARGIN * (inputs + forward + sampling)) + BASE_BYTES


def available_cpu_bytes() -> int:
    """Memory that is free for a process: of the machine, or of the control groups around it if that is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    own = own_group()
    folders = [CGROUPS / own, *(CGROUPS / outer for outer in own.parents)]
    return int(min([free, *map(_left_in_group, folders)]))


def own_group() -> Path:
    """This process's control group (version 2), relative to the mount; that itself where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    return Path(next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), ""))


def _left_in_group(folder: Path) -> float:
    """Infinity without a limit. The page cache counts as free, for it goes when memory is needed."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return math.inf
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root has none, and version 1 other files
        return math.inf
    return max(0, int(limit) - used + int(stat["active_file"]) + int(stat["inactive_file"]))


def _free_gpu_bytes(device: torch.device, options: WorkerOptions) -> int:
    """What --gpu-memory-utilization leaves beside all that is in use. Raises ModelError when that is nothing."""
    free, total = torch.cuda.mem_get_info(device)
    if options.kv_cache_memory_bytes is not None:
        return free
    utilization = options.gpu_memory_utilization or GPU_DEFAULT_UTILIZATION
    left = int(total * utilization) - (total - free)
    if left <= 0:
        raise ModelError(f"--gpu-memory-utilization {utilization}: the weights alone take {total - free} bytes")
    return left
