"""Builds rows for the sampler, with defaults for what a test does not set."""

from dataclasses import dataclass

import numpy as np
import torch

from engine_core.step_plan import NewRequest, SamplingParams, ThinkingBudget, pack_i32
from kernels.interface import DRAW, Ops
from kernels.torch_ops import TorchOps
from services.worker import sampler
from services.worker.logits.interface import LogitsProcessor, LogitsRows
from services.worker.logits.pipeline import LogitsPipeline
from services.worker.logprobs import NO_LOGPROBS, LogprobSlots
from services.worker.sampler import FAULTS, SampleRows, draw_of

FIRST_SLOT = 3  # a row's slot is not its index


@dataclass(frozen=True)
class Row:
    """The sampling input of one request."""

    sampling: SamplingParams
    prompt: list[int]
    output: list[int]
    seed: int
    choice: int

    @property
    def draw(self) -> tuple[float, ...]:
        return draw_of(self.sampling, self.seed, self.choice, len(self.output))


@dataclass(frozen=True)
class RowLogprobs:
    """The logprobs of one row: the sampled token first, then the top ones, or those of the requested ids."""

    token_ids: list[int]
    values: list[float]


def budget(max_tokens: int, start: list[int], end: list[int], starts_open: bool = False) -> ThinkingBudget:
    return ThinkingBudget(max_tokens, pack_i32(start), pack_i32(end), starts_open)


def row(
    prompt: list[int] | None = None, output: list[int] | None = None, seed: int = 0, choice: int = 0, **sampling: object
) -> Row:
    """Returns a row. Lists of token ids become columns: allowed, bias (a dict), bad_words, logprob_ids,
    thinking (the arguments of `budget`)."""
    lists: dict[str, object] = {}
    if allowed := sampling.pop("allowed", None):
        lists["allowed_token_ids"] = pack_i32(allowed)  # type: ignore[arg-type]
    if bias := sampling.pop("bias", None):
        lists["logit_bias_token_ids"] = pack_i32(list(bias))  # type: ignore[call-overload]
        lists["logit_biases"] = np.array(list(bias.values()), dtype="<f4").tobytes()  # type: ignore[attr-defined]
    if words := sampling.pop("bad_words", None):
        lists["bad_words_token_ids"] = tuple(map(pack_i32, words))  # type: ignore[call-overload]
    if ids := sampling.pop("logprob_ids", None):
        lists["logprob_token_ids"] = pack_i32(ids)  # type: ignore[arg-type]
    if thinking := sampling.pop("thinking", None):
        lists["thinking_budget"] = budget(*thinking)  # type: ignore[misc]
    params = SamplingParams(max_tokens=100, **sampling, **lists)  # type: ignore[arg-type]
    return Row(params, prompt or [1], output or [], seed, choice)


def logits_rows(rows: list[Row], device: torch.device | None = None) -> LogitsRows:
    """Returns the rows of one step; row i is in slot FIRST_SLOT + i."""
    longest = max(len(one.prompt) + len(one.output) for one in rows)
    token_ids = torch.full((FIRST_SLOT + len(rows), longest + 1), 2**30, dtype=torch.int32)  # no token id
    for slot, one in enumerate(rows, FIRST_SLOT):
        known = one.prompt + one.output
        token_ids[slot, : len(known)] = torch.tensor(known, dtype=torch.int32)
    prompts = np.array([len(one.prompt) for one in rows])
    outputs = np.array([len(one.output) for one in rows])
    slots = np.arange(len(rows)) + FIRST_SLOT
    return LogitsRows(slots, outputs, prompts, prompts + outputs, token_ids.to(device or "cpu"))


def new_requests(rows: list[Row]) -> list[NewRequest]:
    return [
        NewRequest(0, slot, pack_i32(one.prompt), pack_i32(one.output), [], one.sampling, 0, 0)
        for slot, one in enumerate(rows, FIRST_SLOT)
    ]


def applied(make: type, logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """Returns what one kind of processor makes of logits [rows, vocab]."""
    processor: LogitsProcessor = make(FIRST_SLOT + len(rows), logits.shape[1], logits.device)
    for request in new_requests(rows):
        processor.add(request)
    changed, made = logits.clone(), logits_rows(rows, logits.device)
    indices = np.flatnonzero(processor.selects(made))
    if len(indices):
        processor.apply(changed, indices, made)
    return changed


def pipeline_of(rows: list[Row], vocab_size: int, device: torch.device) -> LogitsPipeline:
    pipeline = LogitsPipeline(FIRST_SLOT + len(rows), vocab_size, device, TorchOps())
    for request in new_requests(rows):
        pipeline.add(request)
    return pipeline


def adjusted(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """Returns the logits [rows, vocab] that the rows' tokens are drawn from."""
    return pipeline_of(rows, logits.shape[1], logits.device).adjust(logits, logits_rows(rows, logits.device))


def sampled(logits: torch.Tensor, rows: list[Row], ops: Ops | None = None) -> sampler.Sampled:
    """Runs the sampler on logits [rows, vocab] with TorchOps by default. Returns its result on the host."""
    logprobs = LogprobSlots(FIRST_SLOT + len(rows), logits.device)
    for request in new_requests(rows):
        logprobs.add(request)
    made = logits_rows(rows, logits.device)
    draws = np.array([one.draw for one in rows], DRAW)
    sample_rows = SampleRows(draws, made, logprobs.rows(made.slots))
    pipeline = pipeline_of(rows, logits.shape[1], logits.device)
    result = sampler.sample(logits, sample_rows, pipeline, ops or TorchOps()).to_host()
    if logits.device.type == "cuda":
        torch.cuda.synchronize()
    return result


def sample(logits: torch.Tensor, rows: list[Row], ops: Ops | None = None) -> tuple[list[int], list[RowLogprobs | None]]:
    """Runs the sampler on logits [rows, vocab]. Returns (token ids, logprobs) on the host. No row has a fault."""
    result = sampled(logits, rows, ops)
    assert not result.faults.any(), FAULTS[int(result.faults.max())]
    found: list[RowLogprobs | None] = []
    entries = zip(result.logprob_ids.tolist(), result.logprobs.tolist(), strict=True)
    for count in result.logprob_counts.tolist():
        valid = slice(1 + count)
        found.append(None if count == NO_LOGPROBS else RowLogprobs(*(part[valid] for part in next(entries))))
    assert not list(entries)
    return result.token_ids.tolist(), found
