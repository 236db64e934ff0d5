"""Samples token ids from logits: penalties and masks, the draw (kernels/sampling.py), logprobs.

Batch-invariant: a row's result depends only on its logits, parameters and tokens, and on noise keyed by (seed, choice,
token index). Ties go to the lowest token id. All tensors stay on the logits' device, without a sync. Penalties and
logprobs run over groups of rows (group_size), which bounds their memory.
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
MAX_LOGPROBS = 20  # top logprobs per row
NO_LOGPROBS = -1  # in num_top: no logprobs, not even the sampled token's
GROUP_ELEMENTS = 2**21  # rows of a group times its width
GROUP_BYTES = 40  # temporaries per element of a group


@dataclass(frozen=True)
class AdjustedRow:
    """A row that gets penalties or stop-token masks on its logits before the draw."""

    sampling: SamplingParams
    output_index: int
    prompt_token_ids: Tensor  # [prompt] int32; empty if the row has no penalties
    output_token_ids: Tensor  # [output] int32; empty if the row has no penalties


@dataclass(frozen=True)
class SampleRows:
    """Sampling parameters of S rows, each of which gets one token."""

    draws: Draws  # [S]
    num_top: npt.NDArray[np.int32]  # [S]: number of top logprobs besides the sampled token's, or NO_LOGPROBS
    adjusted: dict[int, AdjustedRow]  # by row index, ascending


@dataclass(frozen=True)
class Sampled:
    """Results of S rows.

    Logprobs are natural logarithms of the softmax of the raw logits (before penalties, masks and temperature): the
    sampled token's, then the top ones. A row's first 1 + num_top columns are valid.
    """

    token_ids: Tensor  # [S] int64
    healthy: Tensor  # [S] bool: every raw logit is finite
    num_top: npt.NDArray[np.int32]  # [S], as in SampleRows
    logprob_ids: Tensor  # [rows with logprobs, 1 + the largest num_top] int64
    logprobs: Tensor  # same shape, float32

    def to_host(self) -> "Sampled":
        """Returns a copy on the host, or CPU tensors themselves. It is complete once all work queued so far is done."""
        tensors = (to_host(one) for one in (self.token_ids, self.healthy, self.logprob_ids, self.logprobs))
        token_ids, healthy, logprob_ids, logprobs = tensors
        return Sampled(token_ids, healthy, self.num_top, logprob_ids, logprobs)

    def columns(self, rows: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns (number of logprobs of each row [S], their ids, their values). Call it on the host's copy.

        Ids and values are flat, and only of the rows selected by `rows` [S] bool.
        """
        widths = np.zeros(len(rows), dtype=np.int32)
        has_logprobs = self.num_top != NO_LOGPROBS
        if not has_logprobs.any():
            return widths, widths[:0], widths[:0]
        valid = np.arange(self.logprobs.shape[1]) <= self.num_top[has_logprobs, None]
        widths[has_logprobs] = valid.sum(axis=1)
        valid &= rows[has_logprobs, None]
        return widths, self.logprob_ids.numpy()[valid], self.logprobs.numpy()[valid]


def sample(logits: Tensor, rows: SampleRows, ops: Ops) -> Sampled:
    """Returns one token id per row of logits [S, vocab] float32, and the requested logprobs.

    The token of a row with a NaN or infinite logit is undefined (Sampled.healthy).
    """
    adjusted = _adjust_logits(logits, rows.adjusted) if rows.adjusted else logits
    token_ids, healthy = ops.draw(adjusted, logits, rows.draws)
    logprob_ids, logprobs = _logprobs(logits, token_ids, rows.num_top)
    return Sampled(token_ids, healthy, rows.num_top, logprob_ids, logprobs)


def group_size(width: int) -> int:
    """Returns how many rows penalties and logprobs process at once, which bounds their memory; at least 1.

    `width`: the larger of a row's numbers of logits and of tokens.
    """
    return max(1, GROUP_ELEMENTS // width)


def draw_of(sampling: SamplingParams, seed: int, choice: int, index: int) -> tuple[float, ...]:
    """Returns a DRAW record, as a tuple, for the output token `index`; its temperature is 0 if the draw is greedy."""
    temperature = sampling.temperature if sampling.temperature >= GREEDY_BELOW else 0.0
    return temperature, sampling.top_p, sampling.min_p, sampling.top_k, seed, choice, index


def _adjust_logits(logits: Tensor, rows: dict[int, AdjustedRow]) -> Tensor:
    """Returns a copy of logits with penalties and stop-token masks applied to the given rows."""
    penalised = [index for index, row in rows.items() if has_penalty(row.sampling)]
    masked = [(index, row) for index, row in rows.items() if row.output_index < row.sampling.min_tokens]
    adjusted = logits.clone()
    longest = max((len(rows[i].prompt_token_ids) + len(rows[i].output_token_ids) for i in penalised), default=0)
    for indices in _groups(penalised, max(longest, logits.shape[1])):
        selected = to_device(indices, torch.int64, logits.device)
        group = adjusted[selected]
        _apply_penalties(group, [rows[index] for index in indices])
        adjusted.index_copy_(0, selected, group)
    if masked:
        _apply_min_tokens(adjusted, masked)
    return adjusted


def _groups(indices: list[int], width: int) -> Iterator[list[int]]:
    size = group_size(width)
    return (indices[begin : begin + size] for begin in range(0, len(indices), size))


def has_penalty(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def _apply_penalties(logits: Tensor, rows: list[AdjustedRow]) -> None:
    """Applies repetition, frequency and presence penalties to logits [rows, vocab], in place.

    Repetition counts prompt and output (arXiv 1909.05858); the others count the output only
    (https://platform.openai.com/docs/api-reference/chat/create). A neutral penalty changes no bit of its row.
    """

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
    """Counts each vocabulary id in each row's token_ids [length]. Returns [rows, vocab] int32."""
    lengths = [len(ids) for ids in token_ids]
    flat = torch.cat(token_ids).to(logits.device, torch.int64)
    flat += logits.shape[1] * torch.repeat_interleave(
        to_device(lengths, torch.int64, logits.device), output_size=sum(lengths)
    )
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    counts.view(-1).scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    return counts


def _apply_min_tokens(logits: Tensor, rows: list[tuple[int, AdjustedRow]]) -> None:
    """Masks EOS and stop tokens of the given rows, which have fewer than min_tokens, in place on [rows, vocab]."""
    flat = [
        index * logits.shape[1] + token_id
        for index, row in rows
        for token_id in (*row.sampling.eos_token_ids, *row.sampling.stop_token_ids)
    ]
    logits.view(-1).index_fill_(0, to_device(flat, torch.int64, logits.device), float("-inf"))


def _logprobs(logits: Tensor, token_ids: Tensor, num_top: npt.NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """Returns logprob_ids and logprobs as Sampled has them, for logits [S, vocab] and the sampled token_ids [S]."""
    requested = (num_top != NO_LOGPROBS).nonzero()[0].tolist()
    width = min(max(num_top.max(initial=0), 0), logits.shape[1])
    # Results are allocated before the large temporaries, so that they do not fragment memory.
    ids = torch.empty(len(requested), 1 + width, dtype=torch.int64, device=logits.device)
    values = torch.empty(len(requested), 1 + width, device=logits.device)
    begin = 0
    for indices in _groups(requested, logits.shape[1]):
        selected = to_device(indices, torch.int64, logits.device)
        span = slice(begin, begin + len(indices))
        logprobs = _log_softmax(logits[selected])
        ids[span, 0] = token_ids[selected]
        ids[span, 1:] = _ranked(logprobs, width)
        values[span] = logprobs.gather(1, ids[span])
        begin += len(indices)
    return ids, values


def _log_softmax(logits: Tensor) -> Tensor:
    """Returns the log-softmax of each row of [rows, vocab], batch-invariant."""
    if logits.device.type == "cpu":
        # torch's CPU kernel computes the last rows of a tensor in another way: one row at a time, bits are stable.
        return torch.stack([torch.log_softmax(row, dim=-1) for row in logits])
    # torch's CUDA kernel sums in another order if a row is not aligned to 16 bytes.
    vocab = logits.shape[1]
    padded = torch.nn.functional.pad(logits, (0, -vocab % 4), value=float("-inf"))
    return torch.log_softmax(padded, dim=-1)[:, :vocab]


def _ranked(values: Tensor, count: int) -> Tensor:
    """Returns the ids [rows, count] of the largest values of each row of [rows, vocab] float32; ties: lowest ids first.

    topk does not define which of equal values it takes. So each value becomes a unique int64: the float's bits, as an
    integer of the same order, in the upper half; the id, descending, in the lower half.
    """
    if count == 0:
        return values.new_empty(len(values), 0, dtype=torch.int64)
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    order *= 2**32
    order += torch.arange(values.shape[1] - 1, -1, -1, device=values.device)
    return torch.topk(order, count).indices
