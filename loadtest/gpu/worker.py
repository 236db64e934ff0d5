"""The worker on a GPU: how it sizes its memory, and its accuracy in 16-bit and 8-bit types."""

import functools
import gc
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from loadtest.gpu import parity
from loadtest.gpu.shapes import quantizations
from loadtest.gpu.table import Check
from services.options.declarations import WorkerOptions
from services.worker.building import build_runner, profiled_peak_bytes
from services.worker.device import CudaDevice
from services.worker.errors import ModelError
from services.worker.kv_cache import block_bytes
from services.worker.loading import load_model
from services.worker.memory import step_bytes
from services.worker.phases import Phases
from services.worker.profile_sampling import everything
from tests.worker.in_process import InProcess

# (dtype, quantization) -> allowed error of a logprob against float32: what a CPU measured with random weights, times 4
TOLERANCES = {("bfloat16", None): 0.2, ("float16", None): 0.02, ("bfloat16", "int8"): 0.4, ("bfloat16", "fp8"): 1.4}
MEMORY = 256 * 2**20


def checks(device: torch.device) -> list[Check]:
    rows = [
        Check(
            f"worker in {dtype}" + (f", weights in {quantization}" if quantization else ""),
            functools.partial(accuracy, device, dtype, quantization),
        )
        for dtype, quantization in TOLERANCES
        if quantization in quantizations(device)
    ]
    if device.type != "cuda":
        return rows
    return [
        *rows,
        Check("worker: --gpu-memory-utilization sizes the cache", functools.partial(sized_by_utilization, device)),
        Check("worker: a step takes no more than was reserved", functools.partial(step_as_planned, device)),
        Check("worker: --gpu-memory-utilization too small", functools.partial(too_small_a_share, device)),
    ]


def accuracy(device: torch.device, dtype: str, quantization: str | None) -> str:
    """Asserts that each answer's first logprob is within TOLERANCES of that of transformers in float32 on the CPU.
    Model and KV cache have `dtype`. Returns the largest difference as text."""
    case = parity.first_case(device)
    engine = parity.start(case.path, device, caching=False, dtype=dtype, quantization=quantization)
    assert (quantization or "triton") in engine.model.decoder.ops.name.split("+")
    tensors = [tensor for pair in engine.runner._forward._cache for tensor in pair]
    assert {tensor.dtype for tensor in tensors} == {getattr(torch, dtype)} == {engine.model.decoder.dtype}
    assert {tensor.device.type for tensor in tensors} == {device.type}
    given = engine.complete(case.prompts, SamplingParams(max_tokens=1, temperature=0.0, logprobs=0))
    model = AutoModelForCausalLM.from_pretrained(case.path, dtype=torch.float32).eval()
    worst = 0.0
    for prompt, answer in zip(case.prompts, given, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        worst = max(worst, abs(torch.log_softmax(logits, dim=-1)[answer.token_ids[0]].item() - answer.logprobs[0]))
    assert worst <= TOLERANCES[dtype, quantization], f"logprobs differ from float32's by {worst:.2f}"
    return f"{len(given)} prompts, first logprobs within {worst:.3f} of float32's"


def options_for(device: torch.device) -> WorkerOptions:
    path = parity.first_case(device).path
    return WorkerOptions(model=str(path), device=device.type, dtype="float32", max_model_len=512)


def sized_by_utilization(device: torch.device) -> str:
    """Asserts that a utilization that leaves MEMORY bytes after the memory in use and the computed step gives a cache
    of at most MEMORY bytes, and that no more than that share of the GPU is taken. Returns the cache's blocks and bytes,
    and the bytes taken, as text."""
    case = parity.first_case(device)
    options = options_for(device)
    model = load_model(case.path, options)
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    limits = BatchLimits(1, 4096, 4096)
    step = step_bytes(model.decoder.description, model.decoder.dtype, model.decoder.ops, options, limits, graphs=True)
    options = replace(options, gpu_memory_utilization=(total - free + step + MEMORY) / total)
    runner, shape = build_runner(model, options, limits, Phases())
    decoder = model.decoder
    size = shape.num_blocks * block_bytes(decoder.description, decoder.kv_layout, shape.block_size, torch.float32)
    after, _ = torch.cuda.mem_get_info(device)
    assert 0 < size <= MEMORY, f"a cache of {size >> 20} MiB"
    assert size <= free - after <= step + MEMORY, (
        f"{(free - after) >> 20} MiB were taken, {(step + MEMORY) >> 20} are allowed"
    )
    del runner
    return f"{shape.num_blocks} blocks, {size >> 20} MiB; {(free - after) >> 20} MiB taken of the GPU"


def step_as_planned(device: torch.device) -> str:
    """Asserts that steps that use every feature raise the allocator's peak by no more than a step's memory, computed or
    profiled, whichever is larger. Returns the MiB of all three as text."""
    case, limits = parity.first_case(device), BatchLimits(1, 64, 512)
    options = options_for(device)
    model = load_model(case.path, options)
    decoder = model.decoder
    tried = profiled_peak_bytes(decoder, options, limits, CudaDevice(device))
    worker = InProcess(case.path, options, limits, model=model)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    sampling = everything(decoder.description.vocab_size, logprobs=worker.facts.max_logprobs, max_tokens=3)
    worker.complete([[7] * 8] * 64, sampling)
    taken = torch.cuda.max_memory_allocated(device) - before
    computed = step_bytes(decoder.description, decoder.dtype, decoder.ops, options, limits, graphs=True)
    detail = f"{taken >> 20} MiB taken, {computed >> 20} MiB computed, {tried >> 20} MiB when tried"
    assert taken <= max(computed, tried), detail
    return detail


def too_small_a_share(device: torch.device) -> str:
    """Asserts that the worker refuses a utilization of 1e-6 and names the option. Returns the error's text."""
    case = parity.first_case(device)
    options = options_for(device)
    model = load_model(case.path, options)
    try:
        build_runner(model, replace(options, gpu_memory_utilization=1e-6), BatchLimits(1, 8, 256), Phases())
    except ModelError as error:
        assert "--gpu-memory-utilization" in str(error), str(error)
        return str(error)
    raise AssertionError("a utilization of 1e-6 was accepted")
