"""Samples one token per row of logits: what changes logits (logits/), the draw (kernels/sampling.py), logprobs.

Batch-invariant: a row's result depends only on its logits, parameters and tokens, and on noise keyed by (seed, choice,
token index). Ties go to the lowest token id. All tensors stay on the logits' device, without a sync.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.row_errors import NO_TOKEN_LEFT, PENALTY_OVERFLOW
from engine_core.step_plan import SamplingParams
from kernels.interface import Draws, Ops
from kernels.transfer import to_host
from services.worker.logits.interface import LogitsRows
from services.worker.logits.pipeline import LogitsPipeline
from services.worker.logprobs import NO_LOGPROBS, Ints, LogprobRows, gather_logprobs

GREEDY_BELOW = 1e-5  # temperatures under this are greedy


class Fault(NamedTuple):
    """Why a row has no token: the message of its error, and the cause as in StepResult.error_causes."""

    message: str
    cause: str = ""


# Why a row has no token, by its value in Sampled.faults; 0: it has one.
FAULTS = (
    Fault(""),
    Fault("the model's logits are NaN or infinite"),
    Fault(
        "no token is left to sample: allowed_token_ids, bad_words, min_tokens and the grammar exclude all of them",
        NO_TOKEN_LEFT,
    ),
    Fault("repetition_penalty is too small or too large: a logit is infinite after it", PENALTY_OVERFLOW),
)


@dataclass(frozen=True)
class SampleRows:
    """Sampling parameters of S rows, each of which gets one token."""

    draws: Draws  # [S]
    logits: LogitsRows
    logprobs: LogprobRows


@dataclass(frozen=True)
class Sampled:
    """Results of S rows."""

    token_ids: Tensor  # [S] int64
    faults: Tensor  # [S] int8: index into FAULTS; the token of a row with a fault is any of the vocabulary
    logprob_counts: Ints  # [S], as in LogprobRows
    logprob_ids: Tensor  # as gather_logprobs returns them
    logprobs: Tensor

    def to_host(self) -> "Sampled":
        """Returns a copy on the host, or CPU tensors themselves. It is complete once all work queued so far is done."""
        tensors = (to_host(one) for one in (self.token_ids, self.faults, self.logprob_ids, self.logprobs))
        token_ids, faults, logprob_ids, logprobs = tensors
        return Sampled(token_ids, faults, self.logprob_counts, logprob_ids, logprobs)

    def columns(self, rows: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns (number of logprobs of each row [S], their ids, their values). Call it on the host's copy.

        Ids and values are flat, and only of the rows selected by `rows` [S] bool.
        """
        widths = np.zeros(len(rows), dtype=np.int32)
        has_logprobs = self.logprob_counts != NO_LOGPROBS
        if not has_logprobs.any():
            return widths, widths[:0], widths[:0]
        valid = np.arange(self.logprobs.shape[1]) <= self.logprob_counts[has_logprobs, None]
        widths[has_logprobs] = valid.sum(axis=1)
        valid &= rows[has_logprobs, None]
        return widths, self.logprob_ids.numpy()[valid], self.logprobs.numpy()[valid]


def sample(logits: Tensor, rows: SampleRows, pipeline: LogitsPipeline, ops: Ops) -> Sampled:
    """Returns one token id per row of logits [S, vocab] float32, and the requested logprobs."""
    adjusted = pipeline.adjust(logits, rows.logits)
    token_ids, finite = ops.draw(adjusted, logits, rows.draws)
    faults = _faults(logits, adjusted, token_ids, finite)
    logprob_ids, logprobs = gather_logprobs(logits, token_ids, rows.logprobs)
    return Sampled(token_ids, faults, rows.logprobs.counts, logprob_ids, logprobs)


def draw_of(sampling: SamplingParams, seed: int, choice: int, index: int) -> tuple[float, ...]:
    """Returns a DRAW record, as a tuple, for the output token `index`; its temperature is 0 if the draw is greedy."""
    temperature = sampling.temperature if sampling.temperature >= GREEDY_BELOW else 0.0
    return temperature, sampling.top_p, sampling.min_p, sampling.top_k, seed, choice, index


def _faults(logits: Tensor, adjusted: Tensor, token_ids: Tensor, finite: Tensor) -> Tensor:
    """Returns Sampled.faults of rows drawn from `adjusted` [S, vocab]; `finite` [S] bool: all their `logits` are.

    Moves ids of rows without a possible token into the vocabulary, in place.
    """
    if adjusted is logits:
        return (~finite).to(torch.int8)
    token_ids.clamp_(0, adjusted.shape[1] - 1)
    drawn = adjusted.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    # A draw takes a token at -inf only if the row has no other. A row that a penalty spoils is NaN as a whole.
    parameters = torch.where(drawn.isnan(), 3, torch.where(drawn > float("-inf"), 0, 2))
    return torch.where(finite, parameters, 1).to(torch.int8)
