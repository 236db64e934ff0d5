"""`allowed_token_ids`: only the listed ids may be sampled.

A slot keeps the shorter of two lists, the ids that may be sampled or those that may not: at most half the vocabulary.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, unpack_i32
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs
from services.worker.logits.slot_states import SlotStates, flat_indices

MASKED = float("-inf")


class AllowedTokenIds:
    in_groups: ClassVar[bool] = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._kept: SlotStates[Tensor] = SlotStates(max_num_seqs)  # [ids] int32
        self._dropped: SlotStates[Tensor] = SlotStates(max_num_seqs)  # [ids] int32
        self._vocab_size = vocab_size
        self._device = device

    def add(self, request: NewRequest) -> None:
        slot, column = request.slot, request.sampling.allowed_token_ids
        self._kept.put(slot, None)
        self._dropped.put(slot, None)
        if not column:
            return
        allowed = np.zeros(self._vocab_size, dtype=np.bool_)
        allowed[unpack_i32(column)] = True
        keeps = 2 * int(allowed.sum()) <= self._vocab_size
        ids = to_device(np.flatnonzero(allowed == keeps), torch.int32, self._device)
        (self._kept if keeps else self._dropped).put(slot, ids)

    def selects(self, rows: LogitsRows) -> Bools:
        return self._kept.present(rows.slots) | self._dropped.present(rows.slots)

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        keeps = self._kept.present(rows.slots[indices])
        self._keep(logits, indices[keeps], rows)
        self._drop(logits, indices[~keeps], rows)

    def _keep(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        if not len(indices):
            return
        places = flat_indices(self._kept.of(rows.slots[indices]), indices.tolist(), logits)
        values = logits.view(-1)[places]
        # One fill for each run of neighbouring rows: on a CPU, index_fill_ takes three times as long.
        for run in np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1):
            logits[run[0] : run[-1] + 1].fill_(MASKED)
        logits.view(-1).index_put_((places,), values)

    def _drop(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        if not len(indices):
            return
        places = flat_indices(self._dropped.of(rows.slots[indices]), indices.tolist(), logits)
        logits.view(-1).index_fill_(0, places, MASKED)
