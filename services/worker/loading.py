"""From options and a checkpoint to a model that runs: device, dtype, weights, KV cache."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from engine_core.worker_messages import EngineLimits
from kernels.cpu.library import KernelsMissing
from kernels.interface import Ops
from kernels.ops import ops_for
from services.config import WorkerOptions
from services.worker.checkpoint import Checkpoint, read_checkpoint, weights_digest
from services.worker.errors import ModelError
from services.worker.input_batch import InputBatch
from services.worker.kv_cache import KvCacheShape, block_bytes, shape_kv_cache
from services.worker.memory import check_fits, plan_memory
from services.worker.model_runner import ModelRunner
from services.worker.models.config import DecoderConfig, decoder_config
from services.worker.models.decoder import Decoder
from services.worker.models.parameters import parameter_shapes
from services.worker.weights import Weights, dummy_weights, map_safetensors

log = logging.getLogger(__name__)
DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


@dataclass(frozen=True)
class LoadedModel:
    checkpoint: Checkpoint
    decoder: Decoder
    weights_version: str


def pick_device(options: WorkerOptions) -> torch.device:
    """Raises ModelError for options that this device does not have."""
    name = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device cuda: this machine has no CUDA device that torch can use")
    if name == "cpu" and options.gpu_memory_utilization is not None:
        raise ModelError("--gpu-memory-utilization is for CUDA only; on a CPU, --kv-cache-memory-bytes sets the size")
    if name == "cuda" and options.cpu_threads is not None:
        raise ModelError("--cpu-threads is for the compiled CPU kernels only: it does not go with --device cuda")
    return torch.device(name)


def pick_ops(device: torch.device, options: WorkerOptions) -> Ops:
    """Raises ModelError where a batch-invariant answer cannot be given, or the weights' form has no kernels."""
    int8 = options.quantization == "int8"
    if int8 and (device.type != "cpu" or not options.batch_invariant):
        where = "with --no-batch-invariant" if device.type == "cpu" else f"with --device {device.type}"
        raise ModelError(f"--quantization int8 is for the compiled CPU kernels only: it does not go {where}")
    num_threads = options.cpu_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(1 if options.batch_invariant else num_threads)
    try:
        return ops_for(device, options.batch_invariant, num_threads, int8)
    except KernelsMissing as error:
        raise ModelError(f"{error}: install it again, or start with --no-batch-invariant") from error


def load_model(path: Path, options: WorkerOptions, ops: Ops | None = None) -> LoadedModel:
    """Reads configuration and weights; `ops` replaces the device's kernels. Raises ModelError with one line."""
    device = pick_device(options)
    ops = ops or pick_ops(device, options)
    checkpoint = read_checkpoint(path, dict(options.hf_overrides or {}), options.generation_config)
    config = decoder_config(checkpoint.config)
    dtype = pick_dtype(config, options)
    log.info("loading weights on %s as %s", device, str(dtype).removeprefix("torch."))
    tensors, version = open_weights(checkpoint, options, config, dtype)
    decoder = Decoder(config, dtype, device, Weights(tensors), ops)
    invariant = "batch-invariant" if ops.batch_invariant else "not batch-invariant"
    log.info("weights loaded; kernels on %s: %s, %s", device, ops.name, invariant)
    return LoadedModel(checkpoint, decoder, version)


def pick_dtype(config: DecoderConfig, options: WorkerOptions) -> torch.dtype:
    """Raises ModelError for a checkpoint of another type than these."""
    wanted = config.dtype if options.dtype == "auto" else options.dtype
    if wanted not in DTYPES:
        raise ModelError(f"config.json: dtype {wanted!r} is not supported, only {sorted(DTYPES)}")
    return DTYPES[wanted]


def open_weights(
    checkpoint: Checkpoint, options: WorkerOptions, config: DecoderConfig, dtype: torch.dtype
) -> tuple[dict[str, Tensor], str]:
    """The weights by name, and what names them all. Raises ModelError."""
    shapes = parameter_shapes(config)
    if options.load_format == "dummy":
        seed = options.seed or 0
        return dummy_weights(shapes, dtype, seed), f"dummy-{seed}"
    files = checkpoint.weight_files()
    try:
        return map_safetensors(files, shapes, config.tie_word_embeddings), weights_digest(files)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read the weights in {checkpoint.path}: {error}") from error


def build_runner(model: LoadedModel, options: WorkerOptions, limits: EngineLimits) -> tuple[ModelRunner, KvCacheShape]:
    """Sizes and allocates the KV cache and the batch. Raises ModelError when they do not fit."""
    decoder = model.decoder
    config, dtype, device = decoder.config, decoder.dtype, decoder.device
    memory = plan_memory(config, dtype, device, decoder.ops, options, limits)
    shape = shape_kv_cache(config, dtype, options.block_size, memory.budget, options.max_model_len, limits.max_num_seqs)
    kv_bytes = shape.num_blocks * block_bytes(config, shape.block_size, dtype)
    check_fits(memory, kv_bytes)
    try:
        cache = decoder.empty_cache(shape.num_blocks, shape.block_size)
    except (OSError, torch.OutOfMemoryError) as error:
        raise ModelError(f"a KV cache of {kv_bytes} bytes cannot be had: lower --kv-cache-memory-bytes") from error
    memory.tell(kv_bytes)
    batch = InputBatch(limits.max_num_seqs, shape.max_model_len, shape.block_size, device)
    return ModelRunner(decoder, cache, batch), shape
