"""`min_tokens`: nothing that ends the answer is sampled before it has so many tokens.

End-of-sequence tokens are masked even if the request ignores them: they would end the text.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs
from services.worker.logits.slot_states import SlotStates, flat_indices


class MinTokens:
    in_groups: ClassVar[bool] = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._min_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self._end_ids: SlotStates[Tensor] = SlotStates(max_num_seqs)  # [ids] int32; only with min_tokens
        self._device = device

    def add(self, request: NewRequest) -> None:
        sampling = request.sampling
        self._min_tokens[request.slot] = sampling.min_tokens
        ids = (*sampling.eos_token_ids, *sampling.stop_token_ids)
        self._end_ids.put(request.slot, to_device(ids, torch.int32, self._device) if sampling.min_tokens else None)

    def selects(self, rows: LogitsRows) -> Bools:
        too_short: Bools = rows.output_indices < self._min_tokens[rows.slots]
        return too_short

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        places = flat_indices(self._end_ids.of(rows.slots[indices]), indices.tolist(), logits)
        logits.view(-1).index_fill_(0, places, float("-inf"))
