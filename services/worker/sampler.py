"""From logits to token ids: penalties and masks, the draw (kernels/sampling.py), logprobs.

A row's result is a function of that row alone: its logits, its parameters, its tokens, and noise keyed by (seed,
choice, token index). Ties go to the lowest token id everywhere. Everything stays on the device of the logits, and
nothing here waits for it. Rows that want the same are worked on together, as many as group_size allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import SamplingParams
from kernels.interface import Draws, Ops
from kernels.transfer import to_device, to_host

GREEDY_BELOW = 1e-5  # temperatures under this are greedy
MAX_LOGPROBS = 20  # top ones of a row
NO_LOGPROBS = -1  # top logprobs of a row that wants not even the sampled token's
GROUP_ELEMENTS = 2**21  # of a group: logits, or its rows' tokens if those are more
GROUP_BYTES = 40  # of an element, beside the logits


@dataclass(frozen=True)
class AdjustedRow:
    """What changes a row's logits before its draw."""

    sampling: SamplingParams
    output_index: int
    prompt_token_ids: Tensor  # [prompt] int32; empty for a row without penalties
    output_token_ids: Tensor  # [output] int32; the same


@dataclass(frozen=True)
class SampleRows:
    """What the sampler needs to know of S rows."""

    draws: Draws  # [S]
    num_top: npt.NDArray[np.int32]  # [S]: logprobs of so many tokens beside the sampled one, or NO_LOGPROBS
    adjusted: dict[int, AdjustedRow]  # by row, ascending; the others keep their logits


@dataclass(frozen=True)
class Sampled:
    """S rows. Logprobs are natural logarithms of the unmodified distribution: the sampled token's, then the top ones.

    Of their columns each row wanted the first 1 + its num_top.
    """

    token_ids: Tensor  # [S] int64
    healthy: Tensor  # [S] bool: every logit is a number
    num_top: npt.NDArray[np.int32]  # [S], as in SampleRows
    logprob_ids: Tensor  # [rows with logprobs, 1 + the largest num_top] int64
    logprobs: Tensor  # the same, float32

    def to_host(self) -> "Sampled":
        """Complete once the device has done what is queued by now."""
        tensors = (to_host(one) for one in (self.token_ids, self.healthy, self.logprob_ids, self.logprobs))
        token_ids, healthy, logprob_ids, logprobs = tensors
        return Sampled(token_ids, healthy, self.num_top, logprob_ids, logprobs)

    def columns(self, rows: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """On the host: how many logprobs each row [S] has; the ids and values of those of `rows`, behind each other."""
        widths = np.zeros(len(rows), dtype=np.int32)
        wanting = self.num_top != NO_LOGPROBS
        if not wanting.any():
            return widths, widths[:0], widths[:0]
        inside = np.arange(self.logprobs.shape[1]) <= self.num_top[wanting, None]
        widths[wanting] = inside.sum(axis=1)
        inside &= rows[wanting, None]
        return widths, self.logprob_ids.numpy()[inside], self.logprobs.numpy()[inside]


def sample(logits: Tensor, rows: SampleRows, ops: Ops) -> Sampled:
    """logits [S, vocab] float32 -> one token id per row, and logprobs where the request wants them.

    What is drawn for a row with a logit that is no number has no meaning.
    """
    adjusted = _adjust_logits(logits, rows.adjusted) if rows.adjusted else logits
    token_ids, healthy = ops.draw(adjusted, logits, rows.draws)
    logprob_ids, logprobs = _logprobs(logits, token_ids, rows.num_top)
    return Sampled(token_ids, healthy, rows.num_top, logprob_ids, logprobs)


def group_size(width: int) -> int:
    """How many rows of `width` logits or tokens are worked on together."""
    return max(1, GROUP_ELEMENTS // width)


def draw_of(sampling: SamplingParams, seed: int, choice: int, index: int) -> tuple[float, ...]:
    """Of the token of that index in the answer; in the order of DRAW."""
    temperature = sampling.temperature if sampling.temperature >= GREEDY_BELOW else 0.0
    return temperature, sampling.top_p, sampling.min_p, sampling.top_k, seed, choice, index


def _adjust_logits(logits: Tensor, rows: dict[int, AdjustedRow]) -> Tensor:
    """Penalties, then masks, in a copy."""
    penalised = [index for index, row in rows.items() if has_penalty(row.sampling)]
    masked = [(index, row) for index, row in rows.items() if row.output_index < row.sampling.min_tokens]
    adjusted = logits.clone()
    longest = max((len(rows[i].prompt_token_ids) + len(rows[i].output_token_ids) for i in penalised), default=0)
    for indices in _groups(penalised, max(longest, logits.shape[1])):
        places = to_device(indices, torch.int64, logits.device)
        own = adjusted[places]
        _apply_penalties(own, [rows[index] for index in indices])
        adjusted.index_copy_(0, places, own)
    if masked:
        _apply_min_tokens(adjusted, masked)
    return adjusted


def _groups(indices: list[int], width: int) -> Iterator[list[int]]:
    size = group_size(width)
    return (indices[begin : begin + size] for begin in range(0, len(indices), size))


def has_penalty(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def _apply_penalties(logits: Tensor, rows: list[AdjustedRow]) -> None:
    """In place on [rows, vocab]. Repetition counts prompt and output (arXiv 1909.05858), the other two only the output
    (https://platform.openai.com/docs/api-reference/chat/create). What a row has not asked for leaves its bits alone."""

    def column(values: list[float]) -> Tensor:
        return to_device(values, torch.float32, logits.device).unsqueeze(1)

    counts = _count([row.output_token_ids for row in rows], logits)
    repetition = [row.sampling.repetition_penalty for row in rows]
    if any(penalty != 1.0 for penalty in repetition):
        seen = _count([row.prompt_token_ids for row in rows], logits) > 0
        seen |= counts > 0
        penalty = column(repetition)
        weakened = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits.copy_(torch.where(seen, weakened, logits))
    logits -= column([row.sampling.frequency_penalty for row in rows]) * counts
    logits -= column([row.sampling.presence_penalty for row in rows]) * (counts > 0)


def _count(token_ids: list[Tensor], logits: Tensor) -> Tensor:
    """How often each token of the vocabulary occurs in each row's [length], as [rows, vocab] int32."""
    lengths = [len(ids) for ids in token_ids]
    places = torch.cat(token_ids).to(logits.device, torch.int64)
    places += logits.shape[1] * torch.repeat_interleave(
        to_device(lengths, torch.int64, logits.device), output_size=sum(lengths)
    )
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
    return counts


def _apply_min_tokens(logits: Tensor, rows: list[tuple[int, AdjustedRow]]) -> None:
    """In place on [rows, vocab]: in the given ones no token that ends the answer, for min_tokens are not reached."""
    places = [
        index * logits.shape[1] + token_id
        for index, row in rows
        for token_id in (*row.sampling.eos_token_ids, *row.sampling.stop_token_ids)
    ]
    logits.view(-1).index_fill_(0, to_device(places, torch.int64, logits.device), float("-inf"))


def _logprobs(logits: Tensor, token_ids: Tensor, num_top: npt.NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """Ids and logprobs of the rows that want them, as Sampled has them."""
    wanted = (num_top != NO_LOGPROBS).nonzero()[0].tolist()
    width = min(max(num_top.max(initial=0), 0), logits.shape[1])
    # Results get their place first: between large temporaries they would keep memory from being used again.
    ids = torch.empty(len(wanted), 1 + width, dtype=torch.int64, device=logits.device)
    values = torch.empty(len(wanted), 1 + width, device=logits.device)
    begin = 0
    for indices in _groups(wanted, logits.shape[1]):
        places = to_device(indices, torch.int64, logits.device)
        own = slice(begin, begin + len(indices))
        logprobs = _log_softmax(logits[places])
        ids[own, 0] = token_ids[places]
        ids[own, 1:] = _ranked(logprobs, width)
        values[own] = logprobs.gather(1, ids[own])
        begin += len(indices)
    return ids, values


def _log_softmax(logits: Tensor) -> Tensor:
    """Of each row of [rows, vocab], with bits that come from that row alone."""
    if logits.device.type == "cpu":
        # torch takes another logarithm for the last rows of a group: row by row, it is the same.
        return torch.stack([torch.log_softmax(row, dim=-1) for row in logits])
    # CUDA adds up in another order where a row does not begin at an address of 16 bytes.
    vocab = logits.shape[1]
    padded = torch.nn.functional.pad(logits, (0, -vocab % 4), value=float("-inf"))
    return torch.log_softmax(padded, dim=-1)[:, :vocab]


def _ranked(values: Tensor, count: int) -> Tensor:
    """The ids of the `count` largest of each row of [rows, vocab] float32; of equal ones, the lowest ids come first.

    topk does not say which of equal values it takes, so each value is made an integer of its own: the float's bits,
    whose order as integers is that of the floats once negative ones are turned round, then the id, downwards.
    """
    if count == 0:
        return values.new_empty(len(values), 0, dtype=torch.int64)
    bits = (values + 0.0).view(torch.int32)  # + 0.0: minus zero is zero
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    order *= 2**32
    order += torch.arange(values.shape[1] - 1, -1, -1, device=values.device)
    return torch.topk(order, count).indices
