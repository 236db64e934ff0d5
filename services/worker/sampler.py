"""From logits to token ids: penalties, masks, temperature, min-p, top-k, top-p, noise, logprobs.

A row's result is a function of that row alone: its logits, its parameters, its tokens, and noise keyed by (seed,
choice, token index). Ties go to the lowest token id everywhere.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import SamplingParams
from kernels.philox import gumbel_noise

GREEDY_BELOW = 1e-5  # temperatures under this are greedy


@dataclass(frozen=True)
class SampleRow:
    """What the sampler needs to know of one row's request."""

    sampling: SamplingParams
    seed: int
    choice: int
    output_index: int
    prompt_token_ids: npt.NDArray[np.int32]
    output_token_ids: npt.NDArray[np.int32]


@dataclass(frozen=True)
class RowLogprobs:
    """The sampled token first, then the top ones; natural logarithm of the unmodified distribution."""

    token_ids: list[int]
    values: list[float]


def sample(logits: Tensor, rows: list[SampleRow]) -> tuple[list[int], list[RowLogprobs | None]]:
    """logits [rows, vocab] float32 -> one token id per row, and logprobs where the request wants them."""
    shaped = logits
    touched = [index for index, row in enumerate(rows) if _changes_logits(row)]
    if touched:
        shaped = logits.clone()
        for index in touched:
            _penalise(shaped[index], rows[index])
            _mask_stops(shaped[index], rows[index])
    token_ids = torch.argmax(shaped, dim=-1)  # the first of equal maxima, so the lowest id
    drawn = [index for index, row in enumerate(rows) if row.sampling.temperature >= GREEDY_BELOW]
    if drawn:
        token_ids[drawn] = _draw(shaped[drawn], [rows[index] for index in drawn])
    ids: list[int] = token_ids.tolist()
    logprobs = [
        _logprobs(logits[index], ids[index], row.sampling.logprobs) if row.sampling.logprobs is not None else None
        for index, row in enumerate(rows)
    ]
    return ids, logprobs


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
    vocab_size = logits.shape[0]
    counts = _count(row.output_token_ids, vocab_size, logits.device)
    if sampling.repetition_penalty != 1.0:
        seen = (counts > 0) | (_count(row.prompt_token_ids, vocab_size, logits.device) > 0)
        weakened = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits.copy_(torch.where(seen, weakened, logits))
    logits -= sampling.frequency_penalty * counts
    logits -= sampling.presence_penalty * (counts > 0)


def _count(token_ids: npt.NDArray[np.int32], vocab_size: int, device: torch.device) -> Tensor:
    """How often each token occurs, [vocab] int64."""
    return torch.bincount(torch.from_numpy(token_ids), minlength=vocab_size).to(device)


def _mask_stops(logits: Tensor, row: SampleRow) -> None:
    """No token that ends the answer before min_tokens."""
    sampling = row.sampling
    if row.output_index < sampling.min_tokens:
        logits[[*sampling.eos_token_ids, *sampling.stop_token_ids]] = float("-inf")


def _draw(logits: Tensor, rows: list[SampleRow]) -> Tensor:
    """[rows, vocab] -> [rows]: the argmax of the filtered logits plus Gumbel noise, in float64."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits.double() / column([row.sampling.temperature for row in rows])
    for index, row in enumerate(rows):
        _filter(scaled[index], row.sampling)
    noise = gumbel_noise(
        [row.seed for row in rows],
        [row.choice for row in rows],
        [row.output_index for row in rows],
        logits.shape[1],
        logits.device,
    )
    return torch.argmax(scaled + noise, dim=-1)


def _filter(logits: Tensor, sampling: SamplingParams) -> None:
    """Min-p (arXiv 2407.01082), then top-k, then top-p (arXiv 1904.09751), in place on [vocab]."""
    if sampling.min_p > 0.0:
        probabilities = torch.softmax(logits, dim=-1)
        logits[probabilities < sampling.min_p * probabilities.max()] = float("-inf")
    top_k = sampling.top_k if 0 < sampling.top_k < logits.shape[0] else 0
    if not top_k and sampling.top_p >= 1.0:
        return
    order = torch.argsort(logits, descending=True, stable=True)  # stable: equal logits stay in order of their ids
    keep = torch.zeros_like(logits, dtype=torch.bool)
    kept = order[:top_k] if top_k else order
    if sampling.top_p < 1.0:
        probabilities = torch.softmax(logits[kept], dim=-1)
        before = torch.cumsum(probabilities, dim=-1) - probabilities
        kept = kept[before < sampling.top_p]
    keep[kept] = True
    logits[~keep] = float("-inf")


def _logprobs(logits: Tensor, token_id: int, count: int) -> RowLogprobs:
    values = torch.log_softmax(logits, dim=-1)
    ids = [token_id]
    if count:
        count = min(count, values.shape[0])
        # topk does not say which of equal values it takes: gather all that reach the last one, in order of their ids.
        floor = torch.topk(values, count).values[-1]
        reached = torch.nonzero(values >= floor).flatten()
        ranks = torch.argsort(values[reached], descending=True, stable=True)[:count]
        ids += reached[ranks].tolist()
    return RowLogprobs(ids, values[ids].tolist())
