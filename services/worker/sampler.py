"""From logits to token ids: penalties and masks, the draw (kernels/sampling.py), logprobs.

A row's result is a function of that row alone: its logits, its parameters, its tokens, and noise keyed by (seed,
choice, token index). Ties go to the lowest token id everywhere. Everything stays on the device of the logits, and
nothing here waits for it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import SamplingParams
from kernels.interface import DRAW, Ops
from kernels.transfer import to_device, to_host

GREEDY_BELOW = 1e-5  # temperatures under this are greedy


@dataclass(frozen=True)
class SampleRow:
    """What the sampler needs to know of one row's request."""

    sampling: SamplingParams
    seed: int
    choice: int
    output_index: int
    prompt_token_ids: Tensor  # [prompt] int32
    output_token_ids: Tensor  # [output] int32


@dataclass(frozen=True)
class RowLogprobs:
    """The sampled token first, then the top ones; natural logarithm of the unmodified distribution."""

    token_ids: list[int]
    values: list[float]


@dataclass(frozen=True)
class Sampled:
    """S rows. Of the first `num_top` columns of the logprobs, each row wanted its own number."""

    token_ids: Tensor  # [S] int64
    healthy: Tensor  # [S] bool: every logit is a number
    num_top: dict[int, int]  # row -> top logprobs beside the sampled token's; only rows that want logprobs
    logprob_ids: Tensor  # [rows with logprobs, 1 + the largest num_top] int64
    logprobs: Tensor  # the same, float32

    def to_host(self) -> "Sampled":
        """Complete once the device has done what is queued by now."""
        tensors = (to_host(one) for one in (self.token_ids, self.healthy, self.logprob_ids, self.logprobs))
        token_ids, healthy, logprob_ids, logprobs = tensors
        return Sampled(token_ids, healthy, self.num_top, logprob_ids, logprobs)

    def rows(self) -> list[RowLogprobs | None]:
        """On the host."""
        found: list[RowLogprobs | None] = [None] * len(self.token_ids)
        ids, values = self.logprob_ids.tolist(), self.logprobs.tolist()
        for place, (row, count) in enumerate(self.num_top.items()):
            found[row] = RowLogprobs(ids[place][: 1 + count], values[place][: 1 + count])
        return found


def sample(logits: Tensor, rows: list[SampleRow], ops: Ops) -> Sampled:
    """logits [rows, vocab] float32 -> one token id per row, and logprobs where the request wants them.

    What is drawn for a row with a logit that is no number has no meaning.
    """
    shaped = logits
    touched = [index for index, row in enumerate(rows) if _changes_logits(row)]
    if touched:
        shaped = logits.clone()
        for index in touched:
            _penalise(shaped[index], rows[index])
            _mask_stops(shaped[index], rows[index])
    token_ids, healthy = ops.draw(shaped, logits, np.array([_draw_of(row) for row in rows], dtype=DRAW))
    num_top = {index: row.sampling.logprobs for index, row in enumerate(rows) if row.sampling.logprobs is not None}
    logprob_ids, logprobs = _logprobs(logits, token_ids, num_top)
    return Sampled(token_ids, healthy, num_top, logprob_ids, logprobs)


def _draw_of(row: SampleRow) -> tuple[float, float, float, int, int, int, int]:
    """In the order of DRAW."""
    sampling = row.sampling
    temperature = sampling.temperature if sampling.temperature >= GREEDY_BELOW else 0.0
    return temperature, sampling.top_p, sampling.min_p, sampling.top_k, row.seed, row.choice, row.output_index


def _changes_logits(row: SampleRow) -> bool:
    sampling = row.sampling
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or row.output_index < sampling.min_tokens
    )


def _penalise(logits: Tensor, row: SampleRow) -> None:
    """In place on [vocab]. Repetition counts prompt and output (arXiv 1909.05858), the other two only the output
    (https://platform.openai.com/docs/api-reference/chat/create)."""
    sampling = row.sampling
    counts = _count(row.output_token_ids, logits)
    if sampling.repetition_penalty != 1.0:
        seen = (counts > 0) | (_count(row.prompt_token_ids, logits) > 0)
        weakened = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits.copy_(torch.where(seen, weakened, logits))
    logits -= sampling.frequency_penalty * counts
    logits -= sampling.presence_penalty * (counts > 0)


def _count(token_ids: Tensor, logits: Tensor) -> Tensor:
    """How often each token of the vocabulary occurs, [vocab] int64."""
    places = token_ids.to(logits.device, torch.int64)
    return torch.zeros(logits.shape, dtype=torch.int64, device=logits.device).scatter_add_(
        0, places, torch.ones_like(places)
    )


def _mask_stops(logits: Tensor, row: SampleRow) -> None:
    """No token that ends the answer before min_tokens."""
    sampling = row.sampling
    if row.output_index < sampling.min_tokens:
        stops = [*sampling.eos_token_ids, *sampling.stop_token_ids]
        logits.index_fill_(0, to_device(stops, torch.int64, logits.device), float("-inf"))


def _logprobs(logits: Tensor, token_ids: Tensor, num_top: dict[int, int]) -> tuple[Tensor, Tensor]:
    """Ids and logprobs of the rows in `num_top`, as Sampled has them; row by row, so that none sees the others."""
    width = min(max(num_top.values(), default=0), logits.shape[1])
    # Results get their place first: between a row's large temporaries they would keep memory from being used again.
    ids = torch.empty(len(num_top), 1 + width, dtype=torch.int64, device=logits.device)
    values = torch.empty(len(num_top), 1 + width, device=logits.device)
    for place, row in enumerate(num_top):
        logprobs = torch.log_softmax(logits[row], dim=-1)
        ids[place, 0] = token_ids[row]
        ids[place, 1:] = _ranked(logprobs, width)
        values[place] = logprobs[ids[place]]
    return ids, values


def _ranked(values: Tensor, count: int) -> Tensor:
    """The ids of the `count` largest of [vocab] float32; of equal ones, the lowest ids come first.

    topk does not say which of equal values it takes, so each value is made an integer of its own: the float's bits,
    whose order as integers is that of the floats once negative ones are turned round, then the id, downwards.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0: minus zero is zero
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(len(values) - 1, -1, -1, device=values.device)
    return torch.topk(order * 2**32 + ids, count).indices
