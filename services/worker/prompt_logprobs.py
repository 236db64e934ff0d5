"""Logprobs of prompt tokens: the log-softmax of the raw logits of the token before each one.

A step computes those of the prompt tokens that it computes the token before of. Batch-invariant, as logprobs.py; the
head runs over groups of rows, so that a step needs no more memory for it than for its sampled rows.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, PromptLogprobs, pack_i32, unpack_i32
from kernels.transfer import to_device, to_host
from services.worker.logprobs import log_softmax, ranked
from services.worker.models.decoder import Decoder
from services.worker.row_groups import groups

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ScoredTokens:
    """The Q tokens of a step whose logits give the logprobs of the next token of their prompt. Ascending by index."""

    indices: Longs  # [Q]: indices into the T tokens of the step
    slots: Longs  # [Q]
    positions: Longs  # [Q]


@dataclass(frozen=True)
class Scores:
    """Logprobs of the prompt tokens behind Q scored tokens."""

    tokens: ScoredTokens
    widths: Ints  # [Q]: a row's first entries are valid, so many
    handles: Ints  # [Q]
    token_ids: Tensor  # [Q, largest width] int64
    logprobs: Tensor  # [Q, largest width] float32
    ranks: Tensor  # [Q] int64

    def to_host(self) -> "Scores":
        """Returns a copy on the host. It is complete once all work queued so far is done."""
        tensors = (to_host(self.token_ids), to_host(self.logprobs), to_host(self.ranks))
        return Scores(self.tokens, self.widths, self.handles, *tensors)

    def by_request(self) -> list[PromptLogprobs]:
        """Returns one message per request. Call it on the host's copy."""
        ids, values, ranks = self.token_ids.numpy(), self.logprobs.numpy(), self.ranks.numpy()
        found, slots = [], self.tokens.slots
        edges = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(slots)]  # a request's tokens are neighbours
        for first, end in pairwise(edges):
            span, width = slice(first, end), int(self.widths[first])
            found.append(
                PromptLogprobs(
                    handle=int(self.handles[first]),
                    start_index=int(self.tokens.positions[first]) + 1,
                    width=width,
                    token_ids=pack_i32(ids[span, :width]),
                    logprobs=values[span, :width].astype("<f4").tobytes(),
                    ranks=pack_i32(ranks[span]),
                )
            )
        return found


class PromptLogprobSlots:
    """Which computed tokens of each slot's request are scored: those from `begin` on and before `end`."""

    def __init__(self, max_num_seqs: int) -> None:
        self.widths = np.zeros(max_num_seqs, dtype=np.int32)  # logprobs per token; 0: none
        self._begin = np.zeros(max_num_seqs, dtype=np.int64)
        self._end = np.zeros(max_num_seqs, dtype=np.int64)

    def add(self, request: NewRequest) -> None:
        slot = request.slot
        self.widths[slot] = request.sampling.prompt_logprob_width
        self._begin[slot] = request.prompt_logprobs_from - 1
        self._end[slot] = len(unpack_i32(request.prompt_token_ids)) - 1 if self.widths[slot] else 0

    def scored(self, request_slots: npt.NDArray[np.int32], slots: Longs, positions: Longs) -> ScoredTokens | None:
        """Returns the tokens to score among a step's T tokens; None: none. `request_slots`: of its requests."""
        if not self.widths[request_slots].any():
            return None
        indices = np.flatnonzero((positions >= self._begin[slots]) & (positions < self._end[slots]))
        return ScoredTokens(indices, slots[indices], positions[indices]) if indices.size else None


def score(
    hidden: Tensor, scored: ScoredTokens, widths: Ints, handles: Ints, token_ids: Tensor, decoder: Decoder, most: int
) -> Scores:
    """Returns the scores of `hidden` [Q, hidden]. `widths` and `handles` [Q] are those of the tokens' requests,
    `token_ids` [slots, length] the known tokens; the head runs over at most `most` rows at once."""
    device, num_top = hidden.device, int(widths.max()) - 1
    slots, positions = (to_device(column, torch.int64, device) for column in (scored.slots, scored.positions))
    own = token_ids[slots, positions + 1].long()
    # Results are allocated before the large temporaries, so that they do not fragment memory.
    ids = torch.empty(len(own), 1 + num_top, dtype=torch.int64, device=device)
    values = torch.empty(len(own), 1 + num_top, device=device)
    ranks = torch.empty(len(own), dtype=torch.int64, device=device)
    for begin in range(0, len(own), most):
        logits = decoder.logits(hidden[begin : begin + most])
        for rows in groups(np.arange(len(logits)), logits.shape[1]):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            span = slice(begin + part.start, begin + part.stop)
            ids[span, 0] = own[span]
            ids[span, 1:] = ranked(logits[part], num_top)
            values[span] = log_softmax(logits[part]).gather(1, ids[span])
            ranks[span] = _ranks(logits[part], own[span])
    return Scores(scored, widths, handles, ids, values, ranks)


def _ranks(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Returns the rank of a token in each row of [rows, vocab], from 1, [rows] int64; of equal logits, the lower id
    ranks first."""
    own = logits.gather(1, token_ids.unsqueeze(1))
    ids = torch.arange(logits.shape[1], device=logits.device)
    before = (logits > own) | ((logits == own) & (ids < token_ids.unsqueeze(1)))
    return before.sum(dim=1) + 1
