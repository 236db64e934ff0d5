"""The facts of a loaded model that the worker registers with the engine: lengths, vocabulary, KV blocks, end tokens.

Among them the numerics id, which clients see as system_fingerprint. Workers with equal "invariant-" ids give equal
tokens for the same request and seed; with "fast-" ids, tokens also depend on the batch.
"""

import hashlib
import platform
from importlib.metadata import version
from typing import Any

import torch

from engine_core.worker_messages import ModelFacts
from services.options.declarations import WorkerOptions
from services.worker.kv_cache import KvCacheShape
from services.worker.loading import LoadedModel
from services.worker.logprob_limit import logprob_limit

NUMERICS_VERSION = 8  # increment it if a change of kernels, sampler or grammars' limits changes any bit of an answer


def model_facts(model: LoadedModel, options: WorkerOptions, shape: KvCacheShape) -> ModelFacts:
    """Returns what engine, tokenizer and shim need to know of the model; `shape` is that of its KV cache.

    Raises ModelError for bad end tokens or sampling defaults in the checkpoint.
    """
    description = model.decoder.description
    return ModelFacts(
        served_model_names=options.served_model_name or (options.model,),
        max_model_len=shape.max_model_len,
        vocab_size=description.vocab_size,
        eos_token_ids=model.checkpoint.eos_token_ids(description.vocab_size),
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        kv_groups=shape.groups,
        max_logprobs=logprob_limit(options, description.vocab_size),
        sampling_defaults=model.checkpoint.sampling_defaults,
        tokenizer_digest=model.checkpoint.tokenizer_digest(),
        numerics_id=_numerics_id(model),
        weights_version=model.weights_version,
        model=options.model,
    )


def _numerics_id(model: LoadedModel) -> str:
    """Returns "invariant-" or "fast-" and 16 hex digits of a hash of what can change an answer's bits,
    besides request and batch: weights, configuration, kernels, hardware."""
    decoder = model.decoder
    device, ops = decoder.device, decoder.ops
    parts: list[Any] = [
        NUMERICS_VERSION,
        torch.__version__,
        model.weights_version,
        decoder.description,  # with the rope that was chosen for --max-model-len
        str(decoder.dtype),
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else "",  # instruction set of torch's kernels
        ops.name,
        version("llguidance"),  # which tokens a grammar allows
        version("triton") if ops.name.startswith("triton") else "",  # the compiler decides the order of sums
        0 if ops.batch_invariant else torch.get_num_threads(),
    ]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return f"{'invariant' if ops.batch_invariant else 'fast'}-{digest}"
