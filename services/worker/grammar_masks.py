"""The memory of a step's masks, on the host and on the device, the copy between them, and the threads that compute.

One buffer is enough: a step fills it only after the last step with grammars is done.
"""

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLExecutor

from services.grammar.matcher import Matcher, mask_words
from services.machine.available import available_cores
from services.worker.device import Device
from services.worker.grammar_rows import GrammarRows, Masks, in_threads, one_by_one
from services.worker.logits.interface import Longs, RowMasks

ALL_TOKENS = -1  # a word of a mask
# For threads. On two cores, 32 masks take as long in one thread, 0.6 to 0.9 ms.
MIN_CORES, MIN_ROWS = 4, 8


class GrammarMasks:
    def __init__(self, max_num_seqs: int, vocab_size: int, device: Device) -> None:
        shape = max_num_seqs, mask_words(vocab_size)
        size = shape[0] * shape[1] * torch.int32.itemsize
        self._staging = device.staging_buffer(size).view(torch.int32).view(shape)
        self._on_host: npt.NDArray[np.int32] = self._staging.numpy()
        self._on_device = self._staging
        self._executor = LLExecutor() if available_cores() >= MIN_CORES else None
        if not device.shares_memory:
            self._on_device = torch.empty(shape, dtype=torch.int32, device=device.torch_device)

    def fill(self, rows: GrammarRows) -> RowMasks | None:
        """Returns the masks of a step's rows on the device; None if no row has one. The next call overwrites them."""
        return self._sent(rows.fill(self._on_host, self._compute))

    def dummy(self, count: int) -> RowMasks | None:
        """Returns masks for the first `count` rows that allow every token, for the profile run."""
        self._on_host[:count] = ALL_TOKENS
        return self._sent(np.arange(count))

    def _compute(self, matchers: list[Matcher], masks: Masks) -> None:
        if self._executor is not None and len(matchers) >= MIN_ROWS:
            in_threads(self._executor, matchers, masks)
        else:
            one_by_one(matchers, masks)

    def _sent(self, rows: Longs) -> RowMasks | None:
        count = len(rows)
        if not count:
            return None
        if self._on_device is not self._staging:
            self._on_device[:count].copy_(self._staging[:count], non_blocking=True)
        return RowMasks(rows, self._on_device[:count])
