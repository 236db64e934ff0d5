"""Repetition, frequency and presence penalties.

Repetition counts prompt and output (arXiv 1909.05858); the others count the output only
(https://platform.openai.com/docs/api-reference/chat/create). A neutral penalty changes no bit of its row.
A row with a logit beyond float32 after the repetition penalty becomes NaN.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs
from services.worker.logits.slot_states import flat_indices

NEUTRAL = (1.0, 0.0, 0.0)  # repetition, frequency, presence


class Penalties:
    in_groups: ClassVar[bool] = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._present = np.zeros(max_num_seqs, dtype=np.bool_)
        self._repetition = np.zeros(max_num_seqs, dtype=np.bool_)
        self._values = torch.zeros(max_num_seqs, len(NEUTRAL), device=device)  # in the order of NEUTRAL
        self._device = device

    def add(self, request: NewRequest) -> None:
        slot, sampling = request.slot, request.sampling
        values = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._present[slot] = values != NEUTRAL
        self._repetition[slot] = sampling.repetition_penalty != 1.0
        if self._present[slot]:
            self._values[slot] = to_device(values, torch.float32, self._device)

    def selects(self, rows: LogitsRows) -> Bools:
        return self._present[rows.slots]

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        slots = rows.slots[indices]
        selected = to_device(indices, torch.int64, logits.device)
        group = logits[selected]  # [rows, vocab]
        values = self._values[to_device(slots, torch.int64, logits.device)]
        repetition, frequency, presence = values.unsqueeze(2).unbind(1)  # [rows, 1] each
        prompts, outputs = _tokens(rows, indices)
        counts = _count(outputs, group)
        if self._repetition[slots].any():
            seen = _count(prompts, group) > 0
            seen |= counts > 0
            weakened = torch.where(group > 0, group / repetition, group * repetition)
            group.copy_(torch.where(seen, weakened, group))
            # A row with a logit beyond float32 becomes NaN as a whole, so that whichever token is drawn shows it.
            group.masked_fill_(~(group.amax(dim=1, keepdim=True) < float("inf")), float("nan"))
        group -= frequency * counts
        group -= presence * (counts > 0)
        logits.index_copy_(0, selected, group)


def _tokens(rows: LogitsRows, indices: Longs) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the prompts and the outputs of the rows, [tokens] int32 each."""
    columns = (rows.slots, rows.num_prompt_tokens, rows.num_tokens)
    spans = list(zip(*(column[indices].tolist() for column in columns), strict=True))
    prompts = [rows.token_ids[slot, :prompt] for slot, prompt, _ in spans]
    return prompts, [rows.token_ids[slot, prompt:end] for slot, prompt, end in spans]


def _count(token_ids: list[Tensor], logits: Tensor) -> Tensor:
    """Counts each vocabulary id in each row's token_ids [length]. Returns [rows, vocab] int32."""
    places = flat_indices(token_ids, range(len(token_ids)), logits)
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
    return counts
