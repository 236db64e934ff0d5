"""What the worker does differently on a device: how it sizes its memory, and the short types."""

import functools
import gc
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM

from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from loadtest.gpu import parity
from loadtest.gpu.kernels import forms
from loadtest.gpu.table import Check
from services.options.declarations import WorkerOptions
from services.worker.building import build_runner, profiled_peak_bytes
from services.worker.device import CudaDevice
from services.worker.errors import ModelError
from services.worker.kv_cache import block_bytes
from services.worker.loading import load_model
from services.worker.memory import step_bytes
from services.worker.phases import Phases
from tests.worker.in_process import InProcess
from tests.worker.peak import EVERYTHING

# Of a logprob under random weights this wide, against float32: measured on a CPU, times four.
SHORT_TYPES = {("bfloat16", None): 0.2, ("float16", None): 0.02, ("bfloat16", "int8"): 0.4, ("bfloat16", "fp8"): 1.4}
MEMORY = 256 * 2**20


def checks(device: torch.device) -> list[Check]:
    short = [
        Check(
            f"worker in {dtype}" + (f", weights in {form}" if form else ""),
            functools.partial(in_short_type, device, dtype, form),
        )
        for dtype, form in SHORT_TYPES
        if form in forms(device)
    ]
    if device.type != "cuda":
        return short
    return [
        *short,
        Check("worker: --gpu-memory-utilization sizes the cache", functools.partial(sized_by_utilization, device)),
        Check("worker: a step takes what was set aside", functools.partial(step_as_planned, device)),
        Check("worker: --gpu-memory-utilization too small", functools.partial(too_small_a_share, device)),
    ]


def in_short_type(device: torch.device, dtype: str, form: str | None) -> str:
    """The first token's logprob is near that of transformers in float32; model and KV have the type."""
    case = parity.first_case(device)
    engine = parity.start(case.path, device, caching=False, dtype=dtype, quantization=form)
    assert engine.model.decoder.ops.name == (f"triton+{form}" if form else "triton")
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
    assert worst <= SHORT_TYPES[dtype, form], f"logprobs {worst:.2f} from float32's"
    return f"{len(given)} prompts, first logprobs within {worst:.3f} of float32's"


def options_for(device: torch.device) -> WorkerOptions:
    path = parity.first_case(device).path
    return WorkerOptions(model=str(path), device=device.type, dtype="float32", max_model_len=512)


def sized_by_utilization(device: torch.device) -> str:
    """The share that leaves 256 MiB beside what is in use and what a step is computed to take gives a cache of as much,
    less what trying a step shows; and no more than the share is taken."""
    case = parity.first_case(device)
    options = options_for(device)
    model = load_model(case.path, options)
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    limits = BatchLimits(1, 4096, 4096)
    step = step_bytes(model.decoder.config, model.decoder.dtype, model.decoder.ops, options, limits, graphs=True)
    options = replace(options, gpu_memory_utilization=(total - free + step + MEMORY) / total)
    runner, shape = build_runner(model, options, limits, Phases())
    size = shape.num_blocks * block_bytes(model.decoder.config, shape.block_size, torch.float32)
    after, _ = torch.cuda.mem_get_info(device)
    assert 0 < size <= MEMORY, f"a cache of {size >> 20} MiB"
    assert size <= free - after <= step + MEMORY, f"{(free - after) >> 20} MiB were taken"
    del runner
    return f"{shape.num_blocks} blocks, {size >> 20} MiB; {(free - after) >> 20} MiB taken of the GPU"


def step_as_planned(device: torch.device) -> str:
    """What the allocator holds at its peak, in steps that use everything, is no more than was set aside."""
    case, limits = parity.first_case(device), BatchLimits(1, 64, 512)
    options = options_for(device)
    model = load_model(case.path, options)
    decoder = model.decoder
    tried = profiled_peak_bytes(decoder, options, limits, CudaDevice(device))
    worker = InProcess(case.path, options, limits, model=model)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    worker.complete([[7] * 8] * 64, EVERYTHING)
    taken = torch.cuda.max_memory_allocated(device) - before
    computed = step_bytes(decoder.config, decoder.dtype, decoder.ops, options, limits, graphs=True)
    told = f"{taken >> 20} MiB taken, {computed >> 20} MiB computed, {tried >> 20} MiB when tried"
    assert taken <= max(computed, tried), told
    return told


def too_small_a_share(device: torch.device) -> str:
    """Refused in one line that names the option."""
    case = parity.first_case(device)
    options = options_for(device)
    model = load_model(case.path, options)
    try:
        build_runner(model, replace(options, gpu_memory_utilization=1e-6), BatchLimits(1, 8, 256), Phases())
    except ModelError as error:
        assert "--gpu-memory-utilization" in str(error), str(error)
        return str(error)
    raise AssertionError("it was not refused")
