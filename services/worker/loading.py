"""Loads a model: picks device, dtype and kernels by the options, reads the checkpoint."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine_core.kv_cache_size import KvCacheSize
from kernels.cpu.library import KernelsMissing, VariantRefused
from kernels.interface import Ops
from kernels.ops import ops_for
from services.machine import available_cores
from services.options.declarations import WorkerOptions
from services.process.worker_record import RecordFile
from services.worker.checkpoint import Checkpoint, read_checkpoint
from services.worker.device import out_of_memory
from services.worker.errors import ModelError
from services.worker.kv_cache import request_length
from services.worker.memory import check_weights_fit
from services.worker.models.decoder import Decoder
from services.worker.models.describe import describe
from services.worker.models.description import Description, Mlp
from services.worker.models.tensors import parameter_shapes
from services.worker.triton_cache import use_writable_cache
from services.worker.weight_files import WeightFiles
from services.worker.weights import Weights, dummy_weights, has_own_head, map_safetensors

log = logging.getLogger(__name__)
FP8_CAPABILITY = (8, 9)  # CUDA compute capability that converts e4m3 in hardware
DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


@dataclass(frozen=True)
class ModelConfig:
    """What the JSON files of a checkpoint and the options say: a model that can be served, but for its weights."""

    checkpoint: Checkpoint
    description: Description
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class LoadedModel:
    checkpoint: Checkpoint
    decoder: Decoder
    weights_version: str


def pick_device(options: WorkerOptions) -> torch.device:
    """Returns the device for --device. Raises ModelError if this machine lacks it or another option excludes it."""
    name = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device cuda: this machine has no CUDA device that torch can use")
    if name == "cpu" and options.gpu_memory_utilization is not None:
        raise ModelError("--gpu-memory-utilization is for CUDA only; on a CPU, --kv-cache-memory-bytes sets the size")
    if name == "cuda" and options.cpu_threads is not None:
        raise ModelError("--cpu-threads is for the compiled CPU kernels only: it does not go with --device cuda")
    if name == "cuda" and options.cpu_kernels is not None:
        raise ModelError(
            f"--cpu-kernels {options.cpu_kernels} is for a model on the CPU only: it does not go with --device cuda"
        )
    return torch.device(name)


def pick_ops(device: torch.device, options: WorkerOptions) -> Ops:
    """Returns the kernels for the options. Sets torch's number of threads and, for CUDA, Triton's cache directory.

    Raises ModelError if the compiled kernels are missing, --cpu-kernels names a variant that cannot run here or goes
    with --no-batch-invariant, or the quantization is not supported.
    """
    check_quantization(device, options)
    name = options.cpu_kernels
    if name is not None and not options.batch_invariant:
        raise ModelError(f"--cpu-kernels {name} does not go with --no-batch-invariant, which uses torch's kernels")
    num_threads = options.cpu_threads or available_cores()
    torch.set_num_threads(1 if options.batch_invariant else num_threads)
    if device.type == "cuda":
        use_writable_cache()
    try:
        return ops_for(device, options.batch_invariant, num_threads, options.quantization, name)
    except KernelsMissing as error:
        raise ModelError(f"{error}: reinstall tandem, or start with --no-batch-invariant") from error
    except VariantRefused as error:
        raise ModelError(f"--cpu-kernels {error}") from error


def check_quantization(device: torch.device, options: WorkerOptions) -> None:
    """Raises ModelError for a --quantization that the device or --no-batch-invariant does not support."""
    name = options.quantization
    if name is not None and not options.batch_invariant:
        raise ModelError(f"--quantization {name} does not go with --no-batch-invariant: torch has no such kernels")
    if name == "fp8" and device.type != "cuda":
        raise ModelError(f"--quantization fp8 is for CUDA only: use int8 with --device {device.type}")
    if name == "fp8" and (capability := torch.cuda.get_device_capability(device)) < FP8_CAPABILITY:
        has, needs = (".".join(map(str, pair)) for pair in (capability, FP8_CAPABILITY))
        raise ModelError(f"--quantization fp8 needs a GPU of compute capability {needs} or above; this one has {has}")


def load_model(
    path: Path, options: WorkerOptions, ops: Ops | None = None, record: RecordFile | None = None
) -> LoadedModel:
    """Returns the checkpoint at `path` as a LoadedModel, with the weights on the device that pick_device returns.

    `ops`: None for those of pick_ops. `record`: of the server's first load. Raises ModelError for a checkpoint or an
    option that cannot be served, for weight files that are not those of the first load, and if memory runs out.
    """
    device = pick_device(options)
    ops = ops or pick_ops(device, options)
    record = record or RecordFile(None)
    first = record.read().cache
    config = read_config(path, options, device, first)
    checkpoint, dtype = config.checkpoint, config.dtype
    if summary := checkpoint.generation.summary():
        log.info("%s", summary)
    length = request_length(config.description, options.max_model_len)
    log.info("loading weights on %s as %s", device, str(dtype).removeprefix("torch."))
    try:
        description = with_own_head(config, options, first)
        files = WeightFiles(record, options.verify_weights)
        tensors, version = open_weights(checkpoint, options, description, dtype, files)
        decoder = Decoder(description, dtype, device, Weights(tensors), ops, length)
        files.check_unchanged()
    except (RuntimeError, OSError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise ModelError("memory ran out while the weights were loaded: use a smaller model") from error
    invariant = "batch-invariant" if ops.batch_invariant else "not batch-invariant"
    log.info("weights loaded; kernels on %s: %s, %s", device, ops.name, invariant)
    return LoadedModel(checkpoint, decoder, version)


def read_config(
    path: Path, options: WorkerOptions, device: torch.device, first: KvCacheSize | None = None
) -> ModelConfig:
    """Reads the JSON files of the checkpoint at `path`; its weights may be missing. `first`: see check_weights_fit.

    Raises ModelError for a model or an option that cannot be served, and for one that does not fit into memory.
    """
    checkpoint = read_checkpoint(
        path, dict(options.hf_overrides or {}), options.generation_config, options.override_generation_config
    )
    description = describe(checkpoint.config, options.max_model_len)
    request_length(description, options.max_model_len)
    dtype = pick_dtype(description, options)
    if device.type == "cpu" and options.batch_invariant and dtype == torch.bfloat16:
        check_even_sizes(description)
    check_weights_fit(description, dtype, device, options, first)
    return ModelConfig(checkpoint, description, dtype, device)


def pick_dtype(description: Description, options: WorkerOptions) -> torch.dtype:
    """Returns the dtype of --dtype; for "auto", the checkpoint's. Raises ModelError if it is not one of DTYPES."""
    wanted = description.dtype if options.dtype == "auto" else options.dtype
    if wanted not in DTYPES:
        raise ModelError(f"config.json: dtype {wanted!r} is not supported, only {sorted(DTYPES)}")
    return DTYPES[wanted]


def check_even_sizes(description: Description) -> None:
    """Raises ModelError for a size that the compiled CPU kernels cannot use in bfloat16: they multiply pairs."""
    sizes = [("hidden_size", description.hidden_size)]
    for layer in description.layers:
        key = "intermediate_size" if isinstance(layer.mlp, Mlp) else "intermediate_size or moe_intermediate_size"
        sizes += [("head_dim", layer.attention.head_dim), *((key, mlp.size) for mlp in layer.mlps)]
    for key, size in sizes:
        if size % 2:
            raise ModelError(
                f"config.json: {key} {size} is odd, but in bfloat16 the compiled CPU kernels multiply pairs: use"
                " --dtype float32 or --no-batch-invariant"
            )


def open_weights(
    checkpoint: Checkpoint,
    options: WorkerOptions,
    description: Description,
    dtype: torch.dtype,
    files: WeightFiles,
) -> tuple[dict[str, Tensor], str]:
    """Returns the tensors by name, memory-mapped or (--load-format dummy) random, and the weights version.

    The version is that of `files`, or "dummy-" and the seed. Raises ModelError for weights that cannot be read, do not
    fit the configuration, or are not those of the server's first load.
    """
    shapes = parameter_shapes(description)
    if options.load_format == "dummy":
        seed = options.seed or 0
        return dummy_weights(shapes, dtype, seed), f"dummy-{seed}"
    paths = checkpoint.weight_files()
    tensors = map_safetensors(paths, shapes, description.tied, description.names)
    return tensors, files.version(paths)


def with_own_head(config: ModelConfig, options: WorkerOptions, first: KvCacheSize | None = None) -> Description:
    """Returns the description, untied if the files have a head of their own, as in transformers 5: some models are
    trained further after their head was untied, and a wrapper and its text_config may disagree on tie_word_embeddings.

    Raises ModelError if the model does not fit into memory with it.
    """
    description = config.description
    if not description.tied or options.load_format == "dummy":
        return description
    if not has_own_head(config.checkpoint.weight_files(), description.names):
        return description
    log.warning("the files have a head of their own, which is used in place of the tied one")
    untied = replace(description, tied=False)
    check_weights_fit(untied, config.dtype, config.device, options, first)
    return untied
