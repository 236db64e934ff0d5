"""Triton: excludes tokens from rows of logits by packed bits. Twin: reference.apply_bitmask. Each logit is changed by
itself, so it is batch-invariant."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rounding import cdiv

BLOCK = 1024


@triton.jit
def _apply_bitmask_kernel(logits_ptr, masks_ptr, rows_ptr, vocab, words, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab
    word = tl.load(masks_ptr + index * words + ids // 32, mask=inside, other=-1)
    excluded = ((word >> (ids % 32)) & 1) == 0
    tl.store(logits_ptr + row * vocab + ids, float("-inf"), mask=inside & excluded)


def apply_bitmask(logits: Tensor, masks: Tensor, rows: Tensor) -> None:
    """Does what reference.apply_bitmask does; logits and masks are contiguous."""
    vocab, words = logits.shape[1], masks.shape[1]
    assert logits.is_contiguous() and masks.is_contiguous() and words * 32 >= vocab
    _apply_bitmask_kernel[len(rows), cdiv(vocab, BLOCK)](logits, masks, rows, vocab, words, BLOCK=BLOCK)
