"""`bad_words`: a sequence of ids never appears in the output.

Its last id is masked where the ids before it are the last ones of the output. Earlier tokens may be on the device
alone, so they are compared there.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, unpack_i32
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs
from services.worker.logits.slot_states import SlotStates, flat_indices, repeated

ANY = -1  # in a prefix: matches every token
NO_TOKEN = -2  # before the output's first token: matches no id
ELEMENT_BYTES = 16  # temporaries per id of a row's padded sequences


@dataclass(frozen=True)
class _Words:
    prefixes: Tensor  # [words, longest - 1] int32: the ids before the last one, aligned right, ANY before them
    last_ids: Tensor  # [words] int32


class BadWords:
    in_groups: ClassVar[bool] = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._words: SlotStates[_Words] = SlotStates(max_num_seqs)
        self._device = device

    def add(self, request: NewRequest) -> None:
        sequences = request.sampling.bad_words_token_ids
        self._words.put(request.slot, self._prepared(sequences) if sequences else None)

    def selects(self, rows: LogitsRows) -> Bools:
        return self._words.present(rows.slots)

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        words = self._words.of(rows.slots[indices])
        longest = max(one.prefixes.shape[1] for one in words)
        pad = torch.nn.functional.pad
        prefixes = torch.cat([pad(one.prefixes, (longest - one.prefixes.shape[1], 0), value=ANY) for one in words])
        row_of_word = repeated(range(len(words)), [len(one.last_ids) for one in words], logits.device)
        recent = _recent(rows, indices, longest)[row_of_word]
        matched = ((prefixes == recent) | (prefixes == ANY)).all(dim=1)  # [words of all rows]
        # The minimum, because two sequences may have the same last id.
        bounds = torch.where(matched, float("-inf"), float("inf"))
        places = flat_indices([one.last_ids for one in words], indices.tolist(), logits)
        logits.view(-1).scatter_reduce_(0, places, bounds, "amin")

    def _prepared(self, sequences: tuple[bytes, ...]) -> _Words:
        lengths = np.array([len(sequence) // 4 for sequence in sequences])
        longest = int(lengths.max())
        aligned = np.full((len(sequences), longest), ANY, dtype=np.int32)
        aligned[np.arange(longest) >= longest - lengths[:, None]] = unpack_i32(b"".join(sequences))
        on_device = to_device(aligned, torch.int32, self._device)
        return _Words(on_device[:, :-1], on_device[:, -1])


def _recent(rows: LogitsRows, indices: Longs, count: int) -> Tensor:
    """Returns the last `count` output tokens of each row, [rows, count] int32; NO_TOKEN where the output is shorter."""
    device = rows.token_ids.device
    positions: npt.NDArray[np.int64] = rows.num_tokens[indices, None] + np.arange(-count, 0)
    is_output = positions >= rows.num_prompt_tokens[indices, None]
    slots = to_device(rows.slots[indices, None], torch.int64, device)
    tokens = rows.token_ids[slots, to_device(positions.clip(0), torch.int64, device)]
    return torch.where(to_device(is_output, torch.bool, device), tokens, NO_TOKEN)
