"""Grammars: only the tokens may be sampled that a request's grammar allows next.

The masks come with the step's rows; this processor has no state.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest
from kernels.interface import Ops
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs


class GrammarMask:
    in_groups: ClassVar[bool] = False

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def add(self, request: NewRequest) -> None:
        pass

    def selects(self, rows: LogitsRows) -> Bools:
        selected = np.zeros(len(rows.slots), dtype=np.bool_)
        if rows.masks is not None:
            selected[rows.masks.rows] = True
        return selected

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        assert rows.masks is not None
        self._ops.apply_bitmask(logits, rows.masks.words, to_device(indices, torch.int64, logits.device))
