"""Times of attention with other depths of its software pipeline (Tiling.stages), at the head shapes of Qwen3 in bf16.

No bit depends on the depth: each check asserts it. One check compiles the kernels of a depth, so that compilations run
concurrently; the checks that time find them in Triton's cache on disk. On a CPU the same code runs with a few tokens,
untimed.
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from kernels.gpu.attention_tiling import Tiling
from loadtest.gpu.attention import AttentionCase, attention_case, limit_us
from loadtest.gpu.engines import release
from loadtest.gpu.shapes import SHAPES
from loadtest.gpu.table import Check, Measured
from loadtest.gpu.timings import median_us, shown

STAGES = (3, 5, 7)
DECODES = [(batch, 1, context) for context in (4096, 32768) for batch in (1, 8, 32)]  # requests, new tokens, length
CHUNKS = [(1, 2048, 0), (1, 2048, 8192)]
SMALL = [(2, 1, 40), (1, 40, 8)]  # on a CPU, and to compile: a split decode and a chunk of several tiles


def checks(device: torch.device) -> list[Check]:
    """Returns the checks that compile, which may run concurrently, then those that time."""
    on_gpu = device.type == "cuda"
    compiling = [
        Check(
            f"compile attention {model}, {stages} stages",
            functools.partial(compile_stages, device, model, stages),
            False,
        )
        for model in SHAPES
        for stages in STAGES
    ]
    timing = [
        Check(
            f"stages of attention {model}, {batch} x {query_len} tokens after {context}",
            functools.partial(stages_of, device, model, batch, query_len, context),
            alone=on_gpu,
        )
        for model in SHAPES
        for batch, query_len, context in ([*DECODES, *CHUNKS] if on_gpu else SMALL)
    ]
    return [*compiling, *timing] if on_gpu else timing


def compile_stages(device: torch.device, model: str, stages: int) -> str:
    """Launches the kernels of one depth once. Returns whether the GPU has the shared memory for them, as text."""
    cases = [attention_case(device, SHAPES[model].heads, *small) for small in SMALL]
    fit = [attended(case, replace(case.tiling, stages=stages)) is not None for case in cases]
    return f"{sum(fit)} of {len(fit)} fit the shared memory"


def stages_of(device: torch.device, model: str, batch: int, query_len: int, context: int) -> str:
    release()
    return shown(device, measured(device, SHAPES[model].heads, batch, query_len, context))


def measured(device: torch.device, heads: int, batch: int, query_len: int, context: int) -> Measured:
    """Returns the µs of each of STAGES as `data["us"]`, None if it does not fit the shared memory. Raises
    AssertionError if one gives other bits than the present tiling."""
    case = attention_case(device, heads, batch, query_len, context)
    expected = case.attend(case.tiling)
    limit, parts = limit_us(device, case), [f"now {case.tiling.stages} stages"]
    times: dict[str, float | None] = {}
    for stages in STAGES:
        tiling = replace(case.tiling, stages=stages)
        out = attended(case, tiling)
        if out is None:
            times[str(stages)] = None
            parts.append(f"{stages}: too much shared memory")
            continue
        assert torch.equal(out, expected), f"{stages} stages give other bits"
        times[str(stages)] = us = median_us(device, functools.partial(case.attend, tiling))
        parts.append(f"{stages}: {us:.1f} us ({limit / us:.0%} of the limit)")
    return Measured(", ".join(parts), us=times, limit_us=limit, present=case.tiling.stages)


def attended(case: AttentionCase, tiling: Tiling) -> Tensor | None:
    """Returns the result by `tiling`; None if it needs more shared memory than the GPU has."""
    try:
        return case.attend(tiling)
    except OutOfResources:
        return None
