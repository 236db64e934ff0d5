"""The calls: which checks one command runs, in which order and in which time. docs/gpu.md says what to type.

A call is one loan of a GPU, a few minutes long. A: whether it works and how fast it is. B: same bits, and the choice of
tiles. C: the times again, with the tiles that B chose, and memcheck. D: other types and single kernels. "all": all
checks once.

On a CPU each call runs a small part through Triton's interpreter. Checks that exist only on a GPU are "not run".
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from loadtest.gpu import (
    answers,
    attention,
    cublas,
    determinism,
    forms,
    grammars,
    kernels,
    limits,
    parity,
    pointwise,
    products,
    sampling,
    sanitizer,
    serving,
    steps,
    tiles,
    warm,
    worker,
)
from loadtest.gpu.engines import release
from loadtest.gpu.machine import about, as_text
from loadtest.gpu.table import CALL_SECONDS, Check, Measured, NotRun

MODELS, COUNTS = ("0.6B", "8B"), (1, 32, 256)
OTHER_TYPES = re.compile(r"\b(float32|float16|int8|fp8)\b")
TRANSFORMERS_SECONDS = 45.0

Source = Callable[[torch.device], list[Check]]


@dataclass(frozen=True)
class Call:
    seconds: float  # time limit
    checks: Source


def machine(device: torch.device) -> list[Check]:
    def run() -> Measured:
        found = about(device)
        return Measured(as_text(found), **found)

    return [Check("machine", run, alone=False)]


def in_bf16(source: Source) -> Source:
    """Returns the checks of `source` whose names have none of OTHER_TYPES."""
    return lambda device: [check for check in source(device) if not OTHER_TYPES.search(check.name)]


def in_other_types(source: Source) -> Source:
    return lambda device: [check for check in source(device) if OTHER_TYPES.search(check.name)]


def gpu_only(source: Source) -> Source:
    return lambda device: source(device) if device.type == "cuda" else []


def with_all_memory(source: Source) -> Source:
    """Returns the checks of `source`; one that runs alone first releases the memory of the held engine (engines.py)."""

    def run(check: Check) -> str:
        release()
        return check.run()

    return lambda device: [
        replace(check, run=functools.partial(run, check)) if check.alone else check for check in source(device)
    ]


def timed(*, invariant: bool) -> Source:
    return lambda device: steps.checks(device, MODELS, COUNTS, invariant)


def against_transformers(device: torch.device) -> list[Check]:
    return [replace(check, seconds=TRANSFORMERS_SECONDS) for check in steps.compared(device)]


def on(device: torch.device, sources: Sequence[Source]) -> list[Check]:
    """Returns the checks of all sources. On a CPU nothing is timed and caches are small, so none runs alone; and each
    check that a source has only for a GPU is one that is not run."""
    checks: list[Check] = []
    for source in sources:
        here = source(device)
        if device.type == "cpu":
            names = {check.name for check in here}
            absent = [check.name for check in source(torch.device("cuda")) if check.name not in names]
            here = [*(replace(check, alone=False) for check in here), *(on_gpus_only(name) for name in absent)]
        checks += here
    return checks


def on_gpus_only(name: str) -> Check:
    def run() -> str:
        raise NotRun("needs a GPU")

    return Check(name, run, alone=False)


FIRST: tuple[Source, ...] = (machine, warm.checks)
WORKS: tuple[Source, ...] = (with_all_memory(answers.checks), with_all_memory(serving.checks))
STEPS: tuple[Source, ...] = (gpu_only(limits.checks), timed(invariant=True))
SAME_BITS: tuple[Source, ...] = (kernels.checks, sampling.checks, parity.checks, determinism.checks, grammars.checks)
CHOICES: tuple[Source, ...] = (with_all_memory(forms.checks), with_all_memory(tiles.checks))
SINGLE: tuple[Source, ...] = tuple(
    with_all_memory(gpu_only(source)) for source in (products.checks, pointwise.checks, attention.checks)
)
LAST: tuple[Source, ...] = (timed(invariant=False), *SINGLE, gpu_only(against_transformers))

SOURCES: dict[str, tuple[Source, ...]] = {
    "A": (*FIRST, *WORKS, *STEPS, with_all_memory(cublas.checks)),
    "B": (machine, *(in_bf16(source) for source in SAME_BITS), *CHOICES),
    "C": (*FIRST, *STEPS, with_all_memory(sanitizer.checks)),
    "D": (machine, *(in_other_types(source) for source in SAME_BITS), worker.checks, *LAST),
    "all": (
        *FIRST, *WORKS, *SAME_BITS, worker.checks, *STEPS, with_all_memory(cublas.checks), *CHOICES,
        with_all_memory(sanitizer.checks), *LAST,
    ),
}  # fmt: skip
CALLS = {name: Call(CALL_SECONDS[name], functools.partial(on, sources=sources)) for name, sources in SOURCES.items()}


def checks_of(call: str, device: torch.device, only: list[str]) -> list[Check]:
    """Returns the checks of a call that have one of `only` in their name; all for an empty list."""
    return [check for check in CALLS[call].checks(device) if not only or any(text in check.name for text in only)]
