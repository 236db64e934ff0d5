"""What the processes above need to know of a loaded model; and what names it: equal ids give equal tokens."""

import hashlib
import platform
from importlib.metadata import version
from typing import Any

import torch

from engine_core.worker_messages import ModelFacts
from services.options.declarations import WorkerOptions
from services.worker.kv_cache import KvCacheShape
from services.worker.loading import LoadedModel
from services.worker.sampler import MAX_LOGPROBS

NUMERICS_VERSION = 4  # counts up when kernels or sampler change any bit of an answer


def model_facts(model: LoadedModel, options: WorkerOptions, shape: KvCacheShape) -> ModelFacts:
    """What the processes above need to know."""
    config = model.decoder.config
    return ModelFacts(
        served_model_names=options.served_model_name or (options.model,),
        max_model_len=shape.max_model_len,
        vocab_size=config.vocab_size,
        eos_token_ids=model.checkpoint.eos_token_ids(config.vocab_size),
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        kv_groups=("full",),
        max_logprobs=min(MAX_LOGPROBS, config.vocab_size),
        sampling_defaults=model.checkpoint.sampling_defaults,
        tokenizer_digest=model.checkpoint.tokenizer_digest(),
        numerics_id=_numerics_id(model),
        weights_version=model.weights_version,
    )


def _numerics_id(model: LoadedModel) -> str:
    """Equal ids give equal tokens: a hash of everything that may change a bit of an answer."""
    decoder = model.decoder
    device, ops = decoder.device, decoder.ops
    parts: list[Any] = [
        NUMERICS_VERSION,
        torch.__version__,
        model.weights_version,
        sorted(model.checkpoint.config.items(), key=lambda item: item[0]),
        str(decoder.dtype),
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else "",  # what torch's own operations use
        ops.name,
        version("triton") if ops.name.startswith("triton") else "",  # it decides the order of sums
        0 if ops.batch_invariant else torch.get_num_threads(),
    ]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return f"{'invariant' if ops.batch_invariant else 'fast'}-{digest}"
