"""Times of attention with other depths of its software pipeline (Tiling.stages) and other lengths of its KV segments
(Tiling.segment), at the head shapes of Qwen3 in bf16.

No bit depends on the depth: each check asserts it. One check compiles the kernels of a form, so that compilations run
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

# Segment, stages.
FORMS = {
    "cuda": ((256, 3), (256, 2), (256, 4), (256, 5), (128, 3), (128, 2), (64, 3)),
    "cpu": ((256, 3), (256, 5), (64, 3)),
}
# Requests, new tokens, length.
DECODES = [(batch, 1, context) for context in (512, 4096) for batch in (1, 8, 32, 256)] + [
    (batch, 1, 32768) for batch in (1, 8, 32)
]
CHUNKS = [(1, 2048, 0), (1, 2048, 8192)]
SMALL = [(2, 1, 40), (1, 40, 8)]  # on a CPU, and to compile: a split decode and a chunk of several tiles


def checks(device: torch.device) -> list[Check]:
    """Returns the checks that compile, which may run concurrently, then those that time."""
    on_gpu = device.type == "cuda"
    compiling = [
        Check(
            f"compile attention {model}, {named(*form)}", functools.partial(compile_form, device, model, *form), False
        )
        for model in SHAPES
        for form in FORMS["cuda"]
    ]
    timing = [
        Check(
            f"forms of attention {model}, {batch} x {query_len} tokens after {context}",
            functools.partial(forms_of, device, model, batch, query_len, context),
            alone=on_gpu,
        )
        for model in SHAPES
        for batch, query_len, context in ([*DECODES, *CHUNKS] if on_gpu else SMALL)
    ]
    return [*compiling, *timing] if on_gpu else timing


def named(segment: int, stages: int) -> str:
    return f"segments of {segment}, {stages} stages"


def formed(case: AttentionCase, segment: int, stages: int) -> Tiling:
    return replace(case.tiling, segment=segment, stages=stages, walking_stages=stages)


def compile_form(device: torch.device, model: str, segment: int, stages: int) -> str:
    """Launches the kernels of one form once. Returns whether the GPU has the shared memory for them, as text."""
    cases = [attention_case(device, SHAPES[model].heads, *small) for small in SMALL]
    fit = [attended(case, formed(case, segment, stages)) is not None for case in cases]
    return f"{sum(fit)} of {len(fit)} fit the shared memory"


def forms_of(device: torch.device, model: str, batch: int, query_len: int, context: int) -> str:
    release()
    return shown(device, measured(device, SHAPES[model].heads, batch, query_len, context))


def measured(device: torch.device, heads: int, batch: int, query_len: int, context: int) -> Measured:
    """Returns the µs of each of FORMS as `data["us"]`, None if it does not fit the shared memory. Raises
    AssertionError if one gives other bits than another of the same segments."""
    case = attention_case(device, heads, batch, query_len, context)
    limit, expected = limit_us(device, case), dict[int, Tensor]()
    times: dict[str, float | None] = {}
    for segment, stages in FORMS[device.type]:
        tiling, name = formed(case, segment, stages), f"{segment}/{stages}"
        out = attended(case, tiling)
        times[name] = None
        if out is not None:
            assert torch.equal(out, expected.setdefault(segment, out)), f"{named(segment, stages)}: other bits"
            times[name] = median_us(device, functools.partial(case.attend, tiling))
    parts = [
        f"{name}: too much shared memory" if us is None else f"{name}: {us:.1f} us ({limit / us:.0%} of the limit)"
        for name, us in times.items()
    ]
    return Measured(", ".join(parts), us=times, limit_us=limit)


def attended(case: AttentionCase, tiling: Tiling) -> Tensor | None:
    """Returns the result by `tiling`; None if it needs more shared memory than the GPU has."""
    try:
        return case.attend(tiling)
    except OutOfResources:
        return None
