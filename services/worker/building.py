"""From a loaded model and an engine's limits to a model runner: what steps take, the KV cache, the batch.

A device that compiles is tried before its KV cache is sized: the largest steps run, with everything that a request can
ask for, and what its memory has less of afterwards counts as theirs.
"""

import torch

from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.worker.device import CpuDevice, CudaDevice, Device, out_of_memory
from services.worker.errors import ModelError
from services.worker.forward import Forward
from services.worker.input_batch import InputBatch
from services.worker.kv_cache import KvCacheShape, block_bytes, request_length, shape_kv_cache
from services.worker.loading import LoadedModel
from services.worker.memory import check_fits, plan_memory, step_bytes
from services.worker.model_runner import ModelRunner
from services.worker.models.decoder import Decoder
from services.worker.phases import Phases
from services.worker.plan_check import PlanCheck
from services.worker.sampler import MAX_LOGPROBS

MEASURED_GRAPHS = 3  # from which is estimated what the others take
CACHE_ROUNDING = 2 * 2**20  # bytes: what torch's allocator may add to each tensor of the KV cache


def build_runner(
    model: LoadedModel, options: WorkerOptions, limits: BatchLimits, phases: Phases, device: Device | None = None
) -> tuple[ModelRunner, KvCacheShape]:
    """Sizes and allocates the KV cache and the batch; `device` replaces that of the weights.

    Raises ModelError when they do not fit.
    """
    decoder = model.decoder
    config, dtype = decoder.config, decoder.dtype
    trial = device or device_of(decoder)
    step = step_bytes(config, dtype, decoder.ops, options, limits, graphs=bool(trial.graph_sizes))
    if trial.compiles:
        # The larger one: who computes knows nothing of drivers, and who tries does not try every shape.
        step = max(step, profiled_peak_bytes(decoder, options, limits, trial)) + 2 * config.num_layers * CACHE_ROUNDING
        phases.done("first steps")
    memory = plan_memory(config, dtype, decoder.device, options, limits, step)
    shape = shape_kv_cache(config, dtype, options.block_size, memory.budget, options.max_model_len, limits.max_num_seqs)
    kv_bytes = shape.num_blocks * block_bytes(config, shape.block_size, dtype)
    check_fits(memory, kv_bytes)
    try:
        # Not the trial's device: where graphs of a pool are all gone, torch need not let another begin in it.
        runner = make_runner(decoder, limits, shape, device or device_of(decoder))
    except (OSError, torch.OutOfMemoryError) as error:
        raise ModelError(f"a KV cache of {kv_bytes} bytes cannot be had: lower --kv-cache-memory-bytes") from error
    memory.log_summary(kv_bytes)
    runner.capture_next_graph()  # the largest graph, in whose memory the others find room
    phases.done("KV cache")
    return runner, shape


def device_of(decoder: Decoder) -> Device:
    return CudaDevice(decoder.device) if decoder.device.type == "cuda" else CpuDevice(decoder.ops.kernel_nanoseconds)


def make_runner(decoder: Decoder, limits: BatchLimits, shape: KvCacheShape, device: Device) -> ModelRunner:
    cache = decoder.allocate_kv_cache(shape.num_blocks, shape.block_size)
    batch = InputBatch(limits.max_num_seqs, shape.max_model_len, shape.block_size, device)
    tokens = limits.max_num_batched_tokens
    forward = Forward(decoder, cache, batch, device, tokens, shape.max_model_len, shape.block_size)
    check = PlanCheck(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_model_len=shape.max_model_len,
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        vocab_size=decoder.config.vocab_size,
        max_logprobs=MAX_LOGPROBS,
    )
    return ModelRunner(decoder, batch, forward, device, check)


def profiled_peak_bytes(decoder: Decoder, options: WorkerOptions, limits: BatchLimits, device: Device) -> int:
    """What the largest steps and all graphs take, seen from outside: with a KV cache of one block, which all requests
    share. Afterwards whatever is compiled at first use is. Raises ModelError when memory does not suffice."""
    length = request_length(decoder.config, options.max_model_len)
    device.release_cached_memory()
    before = device.used_bytes()
    try:
        runner = make_runner(decoder, limits, KvCacheShape(1, options.block_size, length), device)
        runner.profile_run()
        after = device.used_bytes()
        # More graphs find room in the memory of those that there are: what they take is the driver's.
        num_more = sum(runner.capture_next_graph() for _ in range(min(MEASURED_GRAPHS, runner.num_missing_graphs)))
        each = (device.used_bytes() - after) / max(1, num_more)
        return int(after + each * (num_more + runner.num_missing_graphs)) - before
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise ModelError(
            f"a step with --max-num-batched-tokens {limits.max_num_batched_tokens} and --max-num-seqs"
            f" {limits.max_num_seqs} does not fit beside the weights: lower one of them"
        ) from error
