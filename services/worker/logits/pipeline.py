"""The list of all logits processors, in vLLM's order after the grammars, and what they do to the logits of a step.

The order matters: a bias changes what a penalty divides, and nothing changes what a budget forces. Logprobs are those
of the logits before.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine_core.step_plan import NewRequest
from engine_core.token_lists import MAX_BAD_WORD_SEQUENCES, MAX_BAD_WORD_TOKENS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from engine_core.worker_messages import MAX_IDS
from kernels.interface import Ops
from services.grammar.matcher import mask_words
from services.worker.logits.allowed_token_ids import AllowedTokenIds
from services.worker.logits.bad_words import ELEMENT_BYTES, BadWords
from services.worker.logits.grammar_mask import GrammarMask
from services.worker.logits.interface import LogitsProcessor, LogitsRows
from services.worker.logits.logit_bias import LogitBias
from services.worker.logits.min_tokens import MinTokens
from services.worker.logits.penalties import Penalties
from services.worker.logits.thinking_budget import SCRATCH_BYTES, STATE_BYTES, ThinkingBudgets
from services.worker.row_groups import GROUP_BYTES, group_size, groups

BAD_WORD_ELEMENTS = MAX_BAD_WORD_SEQUENCES * MAX_BAD_WORD_TOKENS

# A processor is made from (max_num_seqs, vocab_size, device).
PROCESSORS: tuple[Callable[[int, int, torch.device], LogitsProcessor], ...] = (
    AllowedTokenIds,
    BadWords,
    MinTokens,
    LogitBias,
    Penalties,
    ThinkingBudgets,
)


class LogitsPipeline:
    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device, ops: Ops) -> None:
        made = [make(max_num_seqs, vocab_size, device) for make in PROCESSORS]
        self._processors: list[LogitsProcessor] = [GrammarMask(ops), *made]
        # Kept, because on a CPU the page faults of new memory take longer than the copy. As large as it can become: one
        # that grows is put amid the temporaries of that time, where it splits the memory that they leave.
        self._copy = torch.empty(max_num_seqs, vocab_size, device=device)

    def add(self, request: NewRequest) -> None:
        """Prepares the state of a request, in place of what its slot had."""
        for processor in self._processors:
            processor.add(request)

    def adjust(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        """Returns the logits [S, vocab] that tokens are drawn from: `logits` itself if no row changes, else a copy.

        The next call overwrites the copy.
        """
        selected = [(one, np.flatnonzero(one.selects(rows))) for one in self._processors]
        if not any(len(indices) for _, indices in selected):
            return logits
        adjusted = self._copy[: len(logits)].copy_(logits)
        width = _width(logits.shape[1], rows.max_tokens)
        for processor, indices in ((one, indices) for one, indices in selected if len(indices)):
            for group in groups(indices, width) if processor.in_groups else [indices]:
                processor.apply(adjusted, group, rows)
        return adjusted


def state_bytes(vocab_size: int) -> int:
    """Returns an upper bound of the state of one slot, its grammar's mask (GrammarMasks) included, in bytes."""
    ids = (
        mask_words(vocab_size) + vocab_size // 2 + BAD_WORD_ELEMENTS + 2 * MAX_LOGIT_BIAS + MAX_STOP_TOKEN_IDS + MAX_IDS
    )
    return ids * torch.int32.itemsize + STATE_BYTES


def scratch_bytes(rows: int, vocab_size: int, max_tokens: int) -> int:
    """Returns an upper bound of the temporaries of LogitsPipeline.adjust, in bytes, without its result."""
    largest = min(rows, group_size(_width(vocab_size, max_tokens)))
    grouped = largest * max(max(vocab_size, max_tokens) * GROUP_BYTES, BAD_WORD_ELEMENTS * ELEMENT_BYTES)
    return max(grouped, rows * SCRATCH_BYTES)


def _width(vocab_size: int, max_tokens: int) -> int:
    return max(vocab_size, max_tokens, BAD_WORD_ELEMENTS)
