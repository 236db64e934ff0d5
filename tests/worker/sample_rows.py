"""Rows for the sampler, with what a test does not care about left out."""

import numpy as np

from engine_core.step_plan import SamplingParams
from services.worker.sampler import SampleRow


def row(
    prompt: list[int] | None = None, output: list[int] | None = None, seed: int = 0, choice: int = 0, **sampling: object
) -> SampleRow:
    params = SamplingParams(max_tokens=100, **sampling)  # type: ignore[arg-type]
    output = output or []
    tokens = (np.array(part, dtype=np.int32) for part in (prompt or [1], output))
    return SampleRow(params, seed, choice, len(output), *tokens)
