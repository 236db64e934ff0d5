"""State of the requests that have some, by slot; and indices into the logits of several rows at once."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from kernels.transfer import to_device
from services.worker.logits.interface import Bools, Longs

State = TypeVar("State")


class SlotStates(Generic[State]):
    """At most one state per slot."""

    def __init__(self, max_num_seqs: int) -> None:
        self._states: list[State | None] = [None] * max_num_seqs
        self._present = np.zeros(max_num_seqs, dtype=np.bool_)

    def put(self, slot: int, state: State | None) -> None:
        """Replaces the state of a slot; None: it has none."""
        self._states[slot] = state
        self._present[slot] = state is not None

    def present(self, slots: Longs) -> Bools:
        """Returns which of `slots` have a state, in their order."""
        return self._present[slots]

    def of(self, slots: Longs) -> list[State]:
        """Returns the states of `slots`, all of which have one."""
        return [state for slot in slots.tolist() if (state := self._states[slot]) is not None]


def flat_indices(token_ids: Sequence[Tensor], rows: Iterable[int], logits: Tensor) -> Tensor:
    """Returns the places of vocabulary ids in the flattened logits [rows, vocab], int64.

    `token_ids`: for each of `rows` its ids, [ids] int32 on the logits' device; the places have the same order.
    """
    lengths = [len(ids) for ids in token_ids]
    places = torch.cat(list(token_ids)).to(torch.int64)
    places += repeated([row * logits.shape[1] for row in rows], lengths, logits.device)
    return places


def repeated(values: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Returns each value as often as its count says, [sum of counts] int64 on `device`, without a sync."""
    return torch.repeat_interleave(
        to_device(values, torch.int64, device), to_device(counts, torch.int64, device), output_size=sum(counts)
    )
