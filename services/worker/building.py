"""Builds a model runner from a loaded model and the engine's batch limits: sizes and allocates KV cache and batch.

On a device that compiles kernels, a profile run comes first: the largest steps run with every sampling option. The peak
of a step is the drop in free memory, or the bound of memory.py if that is larger. The KV cache gets a budget from
memory.py.
"""

import torch

from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.process.worker_record import WorkerRecord
from services.worker.device import CpuDevice, CudaDevice, Device, out_of_memory
from services.worker.errors import ModelError
from services.worker.forward import Forward
from services.worker.grammar_masks import GrammarMasks
from services.worker.input_batch import InputBatch
from services.worker.kv_cache import (
    KvCacheShape,
    block_bytes,
    check_length,
    request_length,
    shape_again,
    shape_kv_cache,
)
from services.worker.loading import LoadedModel
from services.worker.logprob_limit import check_result_size, logprob_limit
from services.worker.memory import Memory, check_fits, plan_memory, step_bytes
from services.worker.model_runner import ModelRunner
from services.worker.models.decoder import Decoder
from services.worker.models.description import Description
from services.worker.models.kv_layout import KvLayout
from services.worker.phases import Phases
from services.worker.plan_check import PlanCheck
from services.worker.prepared_grammars import PreparedGrammars

MEASURED_GRAPHS = 3  # captured after the profile run, to estimate the memory of all other graphs
NO_RECORD = WorkerRecord()
CACHE_ROUNDING = 2 * 2**20  # bytes that torch's allocator may add to each tensor of the KV cache


def build_runner(
    model: LoadedModel,
    options: WorkerOptions,
    limits: BatchLimits,
    phases: Phases,
    device: Device | None = None,
    record: WorkerRecord = NO_RECORD,
) -> tuple[ModelRunner, KvCacheShape]:
    """Returns a runner with KV cache and batch allocated, and the cache's shape; the largest graph is captured.

    On a device that compiles kernels, a profile run comes first. `phases` records how long each part takes. `device`:
    None for that of the weights. `record`: of the workers before this one; the cache gets their size. Raises ModelError
    if the memory does not suffice, or --max-model-len is too large.
    """
    decoder = model.decoder
    description, layout, dtype = decoder.description, decoder.kv_layout, decoder.dtype
    check_result_size(options, description.vocab_size, limits)
    profiled = device or device_of(decoder)
    step = step_bytes(description, dtype, decoder.ops, options, limits, graphs=bool(profiled.graph_sizes))
    if profiled.compiles:
        # The larger of both: the formula does not count the driver's memory, the profile run does not run every shape.
        peak = profiled_peak_bytes(decoder, options, limits, profiled)
        step = max(step, peak) + 2 * layout.num_places * CACHE_ROUNDING
        phases.done("profile run")
    memory = plan_memory(description, dtype, decoder.device, options, limits, step, is_first=record.cache is None)
    shape = _kv_cache_shape(description, layout, dtype, options, memory, limits, record)
    kv_bytes = shape.num_blocks * block_bytes(description, layout, shape.block_size, dtype)
    check_fits(memory, kv_bytes)
    try:
        # Not the profile run's device: torch may refuse to capture into a graph pool after all its graphs are freed.
        runner = make_runner(decoder, options, limits, shape, device or device_of(decoder))
    except (OSError, RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise ModelError(f"cannot allocate a KV cache of {kv_bytes} bytes: lower --kv-cache-memory-bytes") from error
    memory.log_summary(kv_bytes)
    runner.capture_next_graph()  # the largest graph: smaller ones reuse its memory pool
    phases.done("KV cache")
    return runner, shape


def _kv_cache_shape(
    model: Description,
    layout: KvLayout,
    dtype: torch.dtype,
    options: WorkerOptions,
    memory: Memory,
    limits: BatchLimits,
    record: WorkerRecord,
) -> KvCacheShape:
    size = options.block_size
    if record.cache is None:
        return shape_kv_cache(model, layout, dtype, size, memory.budget, options.max_model_len, limits)
    check_length(model, options.max_model_len, record.cache.max_model_len)
    groups, per_block = layout.policies(limits.max_num_batched_tokens), block_bytes(model, layout, size, dtype)
    room = memory.free - memory.step
    if options.kv_cache_memory_bytes is not None:  # lower than for the first worker, perhaps
        room = min(room, options.kv_cache_memory_bytes)
    return shape_again(record, groups, size, per_block, memory.budget, room)


def device_of(decoder: Decoder) -> Device:
    return CudaDevice(decoder.device) if decoder.device.type == "cuda" else CpuDevice(decoder.ops.kernel_nanoseconds)


def make_runner(
    decoder: Decoder, options: WorkerOptions, limits: BatchLimits, shape: KvCacheShape, device: Device
) -> ModelRunner:
    cache = decoder.allocate_kv_cache(shape.num_blocks, shape.block_size)
    vocab_size = decoder.description.vocab_size
    num_groups = len(decoder.kv_layout.windows)
    batch = InputBatch(
        limits.max_num_seqs, shape.max_model_len, shape.block_size, num_groups, vocab_size, device, decoder.ops
    )
    tokens = limits.max_num_batched_tokens
    forward = Forward(decoder, cache, batch, device, tokens, shape.max_model_len, shape.block_size)
    check = PlanCheck(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_model_len=shape.max_model_len,
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_groups=num_groups,
        vocab_size=vocab_size,
        max_logprobs=logprob_limit(options, vocab_size),
    )
    masks = GrammarMasks(limits.max_num_seqs, vocab_size, device)
    return ModelRunner(decoder, batch, forward, device, check, PreparedGrammars(limits.max_num_seqs), masks)


def profiled_peak_bytes(decoder: Decoder, options: WorkerOptions, limits: BatchLimits, device: Device) -> int:
    """Returns the drop in free device memory, in bytes, by a profile run of the largest steps, with all graphs.

    All requests share a KV cache of one block. The profile run's graphs and up to MEASURED_GRAPHS more are captured,
    the rest are estimated. Afterwards all kernels are compiled. Raises ModelError if the device runs out of memory.
    """
    length = request_length(decoder.description, options.max_model_len)
    device.release_cached_memory()
    before = device.used_bytes()
    try:
        runner = make_runner(decoder, options, limits, KvCacheShape(1, options.block_size, length), device)
        runner.profile_run()
        after = device.used_bytes()
        # Further graphs reuse the pool; what they add is the driver's memory. Measured for some, assumed for the rest.
        captured = sum(runner.capture_next_graph() for _ in range(min(MEASURED_GRAPHS, runner.num_missing_graphs)))
        per_graph = (device.used_bytes() - after) / max(1, captured)
        return int(after + per_graph * (captured + runner.num_missing_graphs)) - before
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise ModelError(
            f"a step with --max-num-batched-tokens {limits.max_num_batched_tokens} and --max-num-seqs"
            f" {limits.max_num_seqs} does not fit into memory with the weights: lower one of them"
        ) from error
