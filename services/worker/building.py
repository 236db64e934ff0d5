"""From a loaded model and an engine's limits to a model runner: what steps take, the KV cache, the batch.

A device that compiles is tried before its KV cache is sized: the largest steps run, with everything that a request can
ask for, and what its memory has less of afterwards counts as theirs.
"""

import torch

from engine_core.worker_messages import EngineLimits
from services.config import WorkerOptions
from services.worker.device import Cuda, Device, Host
from services.worker.errors import ModelError
from services.worker.forward import Forward
from services.worker.input_batch import InputBatch
from services.worker.kv_cache import KvCacheShape, block_bytes, shape_kv_cache
from services.worker.loading import LoadedModel
from services.worker.memory import check_fits, plan_memory, step_bytes
from services.worker.model_runner import ModelRunner
from services.worker.models.decoder import Decoder
from services.worker.phases import Phases


def build_runner(
    model: LoadedModel, options: WorkerOptions, limits: EngineLimits, phases: Phases, device: Device | None = None
) -> tuple[ModelRunner, KvCacheShape]:
    """Sizes and allocates the KV cache and the batch; `device` replaces that of the weights.

    Raises ModelError when they do not fit.
    """
    decoder = model.decoder
    config, dtype = decoder.config, decoder.dtype
    if device is None:
        device = Cuda(decoder.device) if decoder.device.type == "cuda" else Host(decoder.ops.kernel_nanoseconds)
    step = step_bytes(config, dtype, decoder.ops, options, limits, graphs=bool(device.graph_sizes))
    if device.compiles:
        # The larger one: who computes knows nothing of drivers, and who tries does not try every shape.
        step = max(step, tried_bytes(decoder, options, limits, device))
        phases.done("first steps")
    memory = plan_memory(config, dtype, decoder.device, options, limits, step)
    shape = shape_kv_cache(config, dtype, options.block_size, memory.budget, options.max_model_len, limits.max_num_seqs)
    kv_bytes = shape.num_blocks * block_bytes(config, shape.block_size, dtype)
    check_fits(memory, kv_bytes)
    try:
        runner = make_runner(decoder, limits, shape, device)
    except (OSError, torch.OutOfMemoryError) as error:
        raise ModelError(f"a KV cache of {kv_bytes} bytes cannot be had: lower --kv-cache-memory-bytes") from error
    memory.tell(kv_bytes)
    runner.record()  # the largest graph, in whose memory the others find room
    phases.done("KV cache")
    return runner, shape


def make_runner(decoder: Decoder, limits: EngineLimits, shape: KvCacheShape, device: Device) -> ModelRunner:
    cache = decoder.empty_cache(shape.num_blocks, shape.block_size)
    batch = InputBatch(limits.max_num_seqs, shape.max_model_len, shape.block_size, device)
    tokens = limits.max_num_batched_tokens
    forward = Forward(decoder, cache, batch, device, tokens, shape.max_model_len, shape.block_size)
    return ModelRunner(decoder, batch, forward, device)


def tried_bytes(decoder: Decoder, options: WorkerOptions, limits: EngineLimits, device: Device) -> int:
    """What the largest steps and all graphs take, seen from outside: with a KV cache of one block, which all requests
    share. Afterwards whatever is compiled at first use is. Raises ModelError when memory does not suffice."""
    length = options.max_model_len or decoder.config.max_position_embeddings
    device.release()
    before = device.taken_bytes()
    try:
        runner = make_runner(decoder, limits, KvCacheShape(1, options.block_size, length), device)
        runner.record()  # the largest graph
        runner.try_out()
        after = device.taken_bytes()
        if runner.record():  # the next one takes what each of the others does: room of the driver's
            after += (device.taken_bytes() - after) * (1 + runner.num_missing)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"a step with --max-num-batched-tokens {limits.max_num_batched_tokens} and --max-num-seqs"
            f" {limits.max_num_seqs} does not fit beside the weights: lower one of them"
        ) from error
    return after - before
