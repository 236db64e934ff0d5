"""Logprobs of sampled tokens: natural logarithms of the softmax of the raw logits, before anything changed them.

The sampled token's comes first, then the top ones or those of requested ids. Batch-invariant; ties go to the lowest id.
Runs over groups of rows (row_groups.py), which bounds its memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, unpack_i32
from kernels.transfer import to_device
from services.worker.logits.slot_states import SlotStates
from services.worker.row_groups import groups

NO_LOGPROBS = -1  # in counts: no logprobs, not even the sampled token's
ENTRY_BYTES = 64  # per logprob of a step: ids and values on the device, on the host and in the message

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LogprobRows:
    """Which logprobs S rows get besides the sampled token's."""

    counts: Ints  # [S]: how many, or NO_LOGPROBS
    token_ids: dict[int, Tensor]  # by row: the requested ids, [count] int32 on the device, instead of the top ones


class LogprobSlots:
    """Which logprobs the request of each slot asks for."""

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self._counts = np.zeros(max_num_seqs, dtype=np.int32)
        self._token_ids: SlotStates[Tensor] = SlotStates(max_num_seqs)
        self._device = device

    def add(self, request: NewRequest) -> None:
        slot, sampling = request.slot, request.sampling
        self._counts[slot] = sampling.logprob_width - 1
        ids = unpack_i32(sampling.logprob_token_ids)
        self._token_ids.put(slot, to_device(ids, torch.int32, self._device) if len(ids) else None)

    def rows(self, slots: npt.NDArray[np.int64]) -> LogprobRows:
        present = np.flatnonzero(self._token_ids.present(slots))
        token_ids = dict(zip(present.tolist(), self._token_ids.of(slots[present]), strict=True))
        return LogprobRows(self._counts[slots], token_ids)


def gather_logprobs(logits: Tensor, sampled: Tensor, rows: LogprobRows) -> tuple[Tensor, Tensor]:
    """Returns ids, int64, and logprobs, float32, both [rows with logprobs, 1 + the largest count].

    For logits [S, vocab] and the sampled ids [S]. A row's first 1 + count columns are valid.
    """
    requested = np.flatnonzero(rows.counts != NO_LOGPROBS)
    width = int(rows.counts.max(initial=0))
    top_counts = rows.counts.copy()
    top_counts[list(rows.token_ids)] = 0
    num_top = min(int(top_counts.max(initial=0)), logits.shape[1])
    # Results are allocated before the large temporaries, so that they do not fragment memory.
    ids = torch.zeros(len(requested), 1 + width, dtype=torch.int64, device=logits.device)
    values = torch.empty(len(requested), 1 + width, device=logits.device)
    begin = 0
    for indices in groups(requested, logits.shape[1]):
        selected = to_device(indices, torch.int64, logits.device)
        span = slice(begin, begin + len(indices))
        logprobs = log_softmax(logits[selected])
        ids[span, 0] = sampled[selected]
        ids[span, 1 : 1 + num_top] = ranked(logprobs, num_top)
        for place, row in enumerate(indices.tolist(), begin):
            if row in rows.token_ids:
                ids[place, 1 : 1 + len(rows.token_ids[row])] = rows.token_ids[row]
        values[span] = logprobs.gather(1, ids[span])
        begin += len(indices)
    return ids, values


def log_softmax(logits: Tensor) -> Tensor:
    """Returns the log-softmax of each row of [rows, vocab], batch-invariant."""
    if logits.device.type == "cpu":
        # torch's CPU kernel computes the last rows of a tensor in another way: one row at a time, bits are stable.
        return torch.stack([torch.log_softmax(row, dim=-1) for row in logits])
    # torch's CUDA kernel sums in another order if a row is not aligned to 16 bytes.
    vocab = logits.shape[1]
    padded = torch.nn.functional.pad(logits, (0, -vocab % 4), value=float("-inf"))
    return torch.log_softmax(padded, dim=-1)[:, :vocab]


def ranked(values: Tensor, count: int) -> Tensor:
    """Returns the ids [rows, count] of the largest values of each row of [rows, vocab] float32; ties: lowest ids first.

    topk does not define which of equal values it takes. So each value becomes a unique key. On a CPU, only the values
    that topk found do: a tenth of the work. A row with more equal values than it took is ranked again by all keys.
    """
    if count == 0:
        return values.new_empty(len(values), 0, dtype=torch.int64)
    ids = torch.arange(values.shape[1], device=values.device)
    if values.device.type != "cpu":
        return torch.topk(_keys(values, ids), count).indices
    top = torch.topk(values, count)
    order = _keys(top.values, top.indices).argsort(dim=1, descending=True)
    found = top.indices.gather(1, order)
    undecided = (values >= top.values[:, -1:]).sum(dim=1) != count  # also a row with NaN
    if undecided.any():
        found[undecided] = torch.topk(_keys(values[undecided], ids), count).indices
    return found


def _keys(values: Tensor, ids: Tensor) -> Tensor:
    """Returns an int64 for each value of [rows, n] float32, in the same order, of equal values the one with the lowest
    of `ids` [n] or [rows, n] first: the float's bits, as an integer of the same order, in the upper half, and the id,
    descending, in the lower half."""
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys *= 2**32
    keys += 2**31 - 1 - ids
    return keys
