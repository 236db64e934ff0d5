"""Triton: how attention (attention.py) stores and merges the results of KV segments."""

import triton
import triton.language as tl


@triton.jit
def merge(best, weight_sum, acc, part_best, part_sum, part_acc, scale):
    """Returns the running (maximum, sum, accumulator) with one segment's `part_` values merged in.

    fma is explicit, because a compiler could contract it in one kernel and not in the other. A segment without keys
    has maximum -inf and zeros; merging it can only change the sign of a zero.
    """
    new_best = tl.maximum(best, part_best)
    # Infinity minus itself would be NaN.
    shift = tl.where(new_best == float("-inf"), 0.0, new_best)
    rescale = tl.exp2((best - shift) * scale)
    part_rescale = tl.exp2((part_best - shift) * scale)
    new_sum = tl.fma(part_sum, part_rescale, weight_sum * rescale)
    new_acc = tl.fma(part_acc, part_rescale[:, None], acc * rescale[:, None])
    return new_best, new_sum, new_acc


@triton.jit
def sink(sinks_ptr, head, inside, scale):
    """Returns (maximum, sum) of each head's sink: a segment of one key without a value. `scale` includes log2(e)."""
    score = tl.load(sinks_ptr + head, mask=inside, other=0.0) * (1.4426950408889634 / scale)
    return score, tl.full(score.shape, 1.0, dtype=tl.float32)


@triton.jit
def mean(weight_sum, acc):
    """Returns acc / sum; zeros if there was no key. Adding 0.0 turns -0 into +0, so empty segments change no bit."""
    return acc / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None] + 0.0


@triton.jit
def store_part(
    part_best_ptr, part_sum_ptr, part_acc_ptr, best, weight_sum, acc, place, dims, row_inside, mask_q,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Stores a segment's maximum, sum and accumulator in the workspace."""
    tl.store(part_best_ptr + place, best, mask=row_inside)
    tl.store(part_sum_ptr + place, weight_sum, mask=row_inside)
    tl.store(part_acc_ptr + place[:, None] * HEAD_DIM + dims[None, :], acc, mask=mask_q)
