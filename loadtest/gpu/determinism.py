"""Bitwise equal answers: with CUDA graphs or single kernels, alone or in a batch, resumed at any token."""

import functools
from collections.abc import Callable

import msgspec
import torch

from engine_core.request_check import NewChoice, make_request
from engine_core.step_plan import SamplingParams
from engine_core.worker_messages import BatchLimits
from loadtest.gpu import parity
from loadtest.gpu.table import Check
from services.options.declarations import WorkerOptions
from services.worker.device import CudaDevice, Device
from tests.fakes import ROOT_KEY
from tests.worker.fake_graph_device import FakeGraphDevice
from tests.worker.in_process import Answer, InProcess

MAX_TOKENS = {"cuda": 48, "cpu": 4}
DTYPES = {"cuda": ("bfloat16", "float32"), "cpu": ("bfloat16",)}
BATCH = {"cuda": 40, "cpu": 2}
SAMPLING = SamplingParams(max_tokens=1, temperature=0.8, top_p=0.95, logprobs=0)


def checks(device: torch.device) -> list[Check]:
    runs: dict[str, Callable[[torch.device, str], str]] = {
        "graphs give the bits of single kernels": graphs,
        "the same bits alone and in a batch": batch,
        "resumed at every token": resumed,
    }
    return [
        Check(f"worker {dtype}: {name}", functools.partial(run, device, dtype))
        for dtype in DTYPES[device.type]
        for name, run in runs.items()
    ]


def start(place: torch.device, dtype: str, device: Device | None = None) -> InProcess:
    case = parity.first_case(place)
    options = WorkerOptions(model=str(case.path), device=place.type, dtype=dtype, block_size=8, max_model_len=512)
    limits = BatchLimits(1, BATCH[place.type] + 1, 64)
    return InProcess(case.path, options, limits, False, parity.triton_ops(place), device=device)


def ask(engine: InProcess, prompts: list[list[int]]) -> list[Answer]:
    count = MAX_TOKENS[engine.model.decoder.device.type]
    return engine.complete(prompts, msgspec.structs.replace(SAMPLING, max_tokens=count), list(range(len(prompts))))


def prompts_for(place: torch.device) -> list[list[int]]:
    return parity.first_case(place).prompts[: BATCH[place.type]]


def graphs(place: torch.device, dtype: str) -> str:
    """Asserts that answers with CUDA graphs equal those without. Returns the numbers of answers and graphs as text.
    Prompts differ in length, so that batch sizes vary and most are padded."""
    recorded: Device | None = None  # one for the profile run, another for the runner: see building.py
    plain: Device = CudaDevice(place) if place.type == "cuda" else FakeGraphDevice(())
    plain.graph_sizes = ()
    if place.type == "cpu":
        recorded = FakeGraphDevice((1, 4))
    engine = start(place, dtype, recorded)
    expected = ask(start(place, dtype, plain), prompts_for(place))
    for _ in range(2):
        assert ask(engine, prompts_for(place)) == expected, "an answer with graphs differs from the one without"
    return f"{len(expected)} answers, {len(engine.runner._forward._graphs)} graphs"


def batch(place: torch.device, dtype: str) -> str:
    """Asserts that the first request's answer in a batch equals its answer alone. Returns the batch's size as text."""
    engine, prompts = start(place, dtype), prompts_for(place)
    together = ask(engine, prompts)
    assert ask(engine, prompts[:1]) == together[:1], "the first answer differs when it is computed alone"
    return f"{len(together)} answers together, the first alone"


def resumed(place: torch.device, dtype: str) -> str:
    """Asserts that a request that is resumed with its first n output tokens gets exactly the others, with the same
    logprobs, for every n. Returns the number of resumes as text."""
    engine, prompt = start(place, dtype), prompts_for(place)[0]
    whole = ask(engine, [prompt])[0]
    for index in range(len(whole.token_ids)):
        handle = len(engine.answers)
        engine.answers[handle] = answer = Answer()
        sampling = msgspec.structs.replace(SAMPLING, max_tokens=len(whole.token_ids))
        choice = NewChoice(handle, 0, prompt, whole.token_ids[:index], sampling, 0, "", None)
        assert engine.scheduler.add(make_request(choice, engine.facts, ROOT_KEY)) is None
        while engine.step():
            pass
        assert answer.token_ids == whole.token_ids[index:], f"resumed at token {index}: other tokens"
        assert answer.logprobs == whole.logprobs[index:], f"resumed at token {index}: other logprobs"
    return f"{len(whole.token_ids)} resumes"
