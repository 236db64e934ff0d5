"""Builds rows for the sampler, with defaults for what a test does not set."""

from dataclasses import dataclass

import numpy as np
import torch

from engine_core.step_plan import SamplingParams
from kernels.interface import DRAW, Ops
from kernels.torch_ops import TorchOps
from services.worker import sampler
from services.worker.sampler import NO_LOGPROBS, AdjustedRow, SampleRows, draw_of, has_penalty


@dataclass(frozen=True)
class Row:
    """The sampling input of one request."""

    seed: int
    choice: int
    adjusted: AdjustedRow

    @property
    def draw(self) -> tuple[float, ...]:
        return draw_of(self.adjusted.sampling, self.seed, self.choice, self.adjusted.output_index)


@dataclass(frozen=True)
class RowLogprobs:
    """The logprobs of one row: the sampled token first, then the top ones."""

    token_ids: list[int]
    values: list[float]


def row(
    prompt: list[int] | None = None, output: list[int] | None = None, seed: int = 0, choice: int = 0, **sampling: object
) -> Row:
    params = SamplingParams(max_tokens=100, **sampling)  # type: ignore[arg-type]
    output = output or []
    tokens = (torch.tensor(part, dtype=torch.int32) for part in (prompt or [1], output))
    return Row(seed, choice, AdjustedRow(params, len(output), *tokens))


def rows_of(rows: list[Row]) -> SampleRows:
    params = [one.adjusted.sampling for one in rows]
    num_top = [NO_LOGPROBS if one.logprobs is None else one.logprobs for one in params]
    adjusted = {
        index: one.adjusted
        for index, one in enumerate(rows)
        if has_penalty(one.adjusted.sampling) or one.adjusted.output_index < one.adjusted.sampling.min_tokens
    }
    return SampleRows(np.array([one.draw for one in rows], DRAW), np.array(num_top, dtype=np.int32), adjusted)


def sample(logits: torch.Tensor, rows: list[Row], ops: Ops | None = None) -> tuple[list[int], list[RowLogprobs | None]]:
    """Runs the sampler on logits [rows, vocab]. Returns (token ids, logprobs) on the host. Uses TorchOps by default."""
    sampled = sampler.sample(logits, rows_of(rows), ops or TorchOps()).to_host()
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
    found: list[RowLogprobs | None] = []
    entries = zip(sampled.logprob_ids.tolist(), sampled.logprobs.tolist(), strict=True)
    for count in sampled.num_top.tolist():
        valid = slice(1 + count)
        found.append(None if count == NO_LOGPROBS else RowLogprobs(*(part[valid] for part in next(entries))))
    assert not list(entries)
    return sampled.token_ids.tolist(), found
