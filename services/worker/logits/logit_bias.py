"""`logit_bias`: a number is added to the logits of some ids
(https://platform.openai.com/docs/api-reference/chat/create).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, unpack_i32
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs
from services.worker.logits.slot_states import SlotStates, flat_indices


@dataclass(frozen=True)
class _Bias:
    token_ids: Tensor  # [ids] int32, all different
    values: Tensor  # [ids] float32


class LogitBias:
    in_groups: ClassVar[bool] = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._biases: SlotStates[_Bias] = SlotStates(max_num_seqs)
        self._device = device

    def add(self, request: NewRequest) -> None:
        sampling = request.sampling
        self._biases.put(request.slot, None)
        if sampling.logit_bias_token_ids:
            ids = to_device(unpack_i32(sampling.logit_bias_token_ids), torch.int32, self._device)
            values = to_device(np.frombuffer(sampling.logit_biases, dtype="<f4"), torch.float32, self._device)
            self._biases.put(request.slot, _Bias(ids, values))

    def selects(self, rows: LogitsRows) -> Bools:
        return self._biases.present(rows.slots)

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        biases = self._biases.of(rows.slots[indices])
        places = flat_indices([one.token_ids for one in biases], indices.tolist(), logits)
        logits.view(-1).index_add_(0, places, torch.cat([one.values for one in biases]))
