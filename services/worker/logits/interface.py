"""What a logits processor is, and what it knows of the rows that it changes."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine_core.step_plan import NewRequest

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowMasks:
    """The tokens that M of the S rows may have by their grammars."""

    rows: Longs  # [M]: indices of the rows, ascending; on the host
    words: Tensor  # [M, words] int32, on the logits' device; bit i % 32 of word i // 32 is set if token i may follow


@dataclass(frozen=True)
class LogitsRows:
    """The requests of S rows of logits, each of which gets one token. Columns are on the host."""

    slots: Longs  # [S]
    output_indices: Longs  # [S]: index of the sampled token in the output
    num_prompt_tokens: Longs  # [S]
    num_tokens: Longs  # [S]: known tokens, prompt and output
    token_ids: Tensor  # [slots, length] int32, on the logits' device: the known tokens by slot
    masks: RowMasks | None = None  # None: no row has a grammar that goes on

    @property
    def max_tokens(self) -> int:
        """The most tokens that a row may have."""
        return self.token_ids.shape[1]


class LogitsProcessor(Protocol):
    """Changes the logits of some rows, for one kind of sampling parameters, and keeps their state by slot.

    Batch-invariant: what it does to a row depends on that row, its request and its tokens alone. No device sync.
    """

    # Whether its temporaries are as large as the logits: then a call of `apply` changes a few rows, else all.
    in_groups: ClassVar[bool]

    def add(self, request: NewRequest) -> None:
        """Prepares the state of a request on the device, in place of what its slot had."""

    def selects(self, rows: LogitsRows) -> Bools:
        """Returns which rows it changes, [S]."""

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        """Changes the rows `indices`, which ascend and are all selected, of logits [S, vocab] float32 in place."""
