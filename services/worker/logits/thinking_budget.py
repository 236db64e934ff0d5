"""`thinking_token_budget`: after so many tokens of reasoning, its end is sampled, whatever the logits are.

An output consists of sections, in turn closed and open (in reasoning). A marker ends a section and belongs to no other:
the start ids end a closed section, the end ids an open one. Once an open section has max_tokens tokens, the end ids are
forced one after another. If the model has begun to write them, they are completed: forcing begins after their longest
prefix that the section ends with, as in vLLM. Each section has its own budget; a start within an open one does nothing.

Each slot has a section as state. A step advances it by the newest token, which may be on the device alone, at a cost
that does not depend on the answer's length (shift-and, Baeza-Yates and Gonnet 1992, doi.org/10.1145/135239.135243).
"""

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest, ThinkingBudget, unpack_i32
from engine_core.token_lists import MAX_THINKING_MARKER_TOKENS
from kernels.transfer import to_device
from services.worker.logits.interface import Bools, LogitsRows, Longs

PADDING = -1  # after a marker's ids: no token id
NO_TOKEN = -2  # before the output's first token: in no marker
STATE_BYTES = 9 * MAX_THINKING_MARKER_TOKENS + 5 * 8  # of a slot
SCRATCH_BYTES = 24 * MAX_THINKING_MARKER_TOKENS  # of a row


class Section(NamedTuple):
    """The section that an output is in."""

    is_open: bool
    num_tokens: int  # without the marker before it
    matched: int  # bit i: its last i + 1 tokens are the first i + 1 ids of the marker that would end it


class ThinkingBudgets:
    in_groups: ClassVar[bool] = False

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        width = MAX_THINKING_MARKER_TOKENS
        self._present = np.zeros(max_num_seqs, dtype=np.bool_)
        self._markers = torch.full((max_num_seqs, 2, width), PADDING, dtype=torch.int32, device=device)  # start, end
        self._last = torch.zeros(max_num_seqs, 2, dtype=torch.int64, device=device)  # index of a marker's last id
        self._max_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        # A Section before the newest token, by slot.
        self._open = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)  # 0 or 1
        self._num_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._matched = torch.zeros(max_num_seqs, width, dtype=torch.bool, device=device)
        self._lengths = torch.arange(1, width + 1, device=device)
        self._device = device

    def add(self, request: NewRequest) -> None:
        slot, budget = request.slot, request.sampling.thinking_budget
        self._present[slot] = budget is not None
        if budget is None:
            return
        markers = [unpack_i32(budget.start_token_ids), unpack_i32(budget.end_token_ids)]
        padded = np.full(self._markers.shape[1:], PADDING, dtype=np.int32)
        for row, ids in zip(padded, markers, strict=True):
            row[: len(ids)] = ids
        section = section_before_newest(budget, unpack_i32(request.output_token_ids).tolist())
        matched = np.array([section.matched >> bit & 1 for bit in range(self._matched.shape[1])])
        self._markers[slot] = to_device(padded, torch.int32, self._device)
        self._last[slot] = to_device([max(len(ids) - 1, 0) for ids in markers], torch.int64, self._device)
        self._max_tokens[slot] = budget.max_tokens
        self._open[slot] = int(section.is_open)
        self._num_tokens[slot] = section.num_tokens
        self._matched[slot] = to_device(matched, torch.bool, self._device)

    def selects(self, rows: LogitsRows) -> Bools:
        return self._present[rows.slots]

    def apply(self, logits: Tensor, indices: Longs, rows: LogitsRows) -> None:
        slots = to_device(rows.slots[indices], torch.int64, logits.device)
        is_open, num_tokens, matched = self._advance(slots, _newest(rows, indices, slots))
        forced = is_open & (num_tokens >= self._max_tokens[slots])
        begun = torch.where(matched, self._lengths, 0).amax(dim=1, keepdim=True)  # ids of the end that are there
        next_ids = self._markers[slots, 1].gather(1, begun).squeeze(1).clamp_(min=0)  # of a closed section: not used
        _force(logits, indices, forced, next_ids.to(torch.int64))

    def _advance(self, slots: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Appends tokens [rows] int32 to the sections of `slots`, and returns them.

        They are (is open [rows] bool, tokens [rows] int64, matched [rows, ids] bool), as in Section.
        """
        was_open = self._open[slots]
        matched = self._markers[slots, was_open] == tokens.unsqueeze(1)
        matched[:, 1:] &= self._matched[slots, :-1]
        ended = matched.gather(1, self._last[slots, was_open].unsqueeze(1))  # [rows, 1]
        matched &= ~ended
        ends = ended.squeeze(1)
        is_open = was_open ^ ends
        num_tokens = torch.where(ends, 0, self._num_tokens[slots] + 1)
        self._open[slots], self._num_tokens[slots], self._matched[slots] = is_open, num_tokens, matched
        return is_open.to(torch.bool), num_tokens, matched


def section_before_newest(budget: ThinkingBudget, output: list[int]) -> Section:
    """Returns the section that `output` is in without its last token, which the next step appends.

    If `output` is empty, the next step appends NO_TOKEN instead: num_tokens is -1 before that.
    """
    markers = [unpack_i32(column).tolist() for column in (budget.start_token_ids, budget.end_token_ids)]
    places: list[dict[int, int]] = [{}, {}]  # by marker: id -> bit i is set if it is the marker's id i
    for bits, marker in zip(places, markers, strict=True):
        for index, token_id in enumerate(marker):
            bits[token_id] = bits.get(token_id, 0) | 1 << index
    whole = [1 << len(marker) >> 1 for marker in markers]  # the bit of a marker's last id; 0: the marker is empty
    is_open, num_tokens, matched = budget.starts_open, 0 if output else -1, 0
    for token_id in output[:-1]:
        matched = (matched << 1 | 1) & places[is_open].get(token_id, 0)
        num_tokens += 1
        if matched & whole[is_open]:
            is_open, num_tokens, matched = not is_open, 0, 0
    return Section(is_open, num_tokens, matched)


def _newest(rows: LogitsRows, indices: Longs, slots: Tensor) -> Tensor:
    """Returns the last output token of each row, [rows] int32; NO_TOKEN where there is none."""
    positions = to_device(rows.num_tokens[indices] - 1, torch.int64, slots.device)
    has_output = to_device(rows.output_indices[indices] > 0, torch.bool, slots.device)
    return torch.where(has_output, rows.token_ids[slots, positions], NO_TOKEN)


def _force(logits: Tensor, indices: Longs, forced: Tensor, token_ids: Tensor) -> None:
    """Leaves only token_ids [rows] int64 in the rows `indices` that are `forced` [rows] bool, in place.

    An id that a mask excludes is possible again. A row that a penalty has made NaN stays so: its request fails.
    """
    first, end = int(indices[0]), int(indices[-1]) + 1
    places = to_device(indices, torch.int64, logits.device)
    before = logits[places, token_ids]
    # One pass over the rows from the first to the last, also those between that are not meant: infinity changes no bit.
    bounds = torch.full((end - first, 1), float("inf"), device=logits.device)
    bounds[places - first, 0] = torch.where(forced, float("-inf"), float("inf"))
    logits[first:end].clamp_(max=bounds)
    logits[places, token_ids] = torch.where(forced & ~before.isnan(), 0.0, before)
