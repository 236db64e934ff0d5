"""Rows for the sampler, with what a test does not care about left out."""

import torch

from engine_core.step_plan import SamplingParams
from kernels.interface import Ops
from kernels.torch_ops import TorchOps
from services.worker import sampler
from services.worker.sampler import RowLogprobs, SampleRow


def row(
    prompt: list[int] | None = None, output: list[int] | None = None, seed: int = 0, choice: int = 0, **sampling: object
) -> SampleRow:
    params = SamplingParams(max_tokens=100, **sampling)  # type: ignore[arg-type]
    output = output or []
    tokens = (torch.tensor(part, dtype=torch.int32) for part in (prompt or [1], output))
    return SampleRow(params, seed, choice, len(output), *tokens)


def sample(
    logits: torch.Tensor, rows: list[SampleRow], ops: Ops | None = None
) -> tuple[list[int], list[RowLogprobs | None]]:
    """Tokens and logprobs, on the host; by the plain twin unless told otherwise."""
    sampled = sampler.sample(logits, rows, ops or TorchOps()).to_host()
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
    return sampled.token_ids.tolist(), sampled.rows()
