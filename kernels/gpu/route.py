"""Triton: the choice of each token's experts. Twin: reference.route. One program computes a row, so it is
batch-invariant; equal scores go to the lower expert."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.rounding import next_power_of_2


@triton.jit
def _route_kernel(
    logits_ptr, correction_ptr, ids_ptr, weights_ptr, size, scale,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, TOP_K: tl.constexpr, GROUPS_PADDED: tl.constexpr,
    SIZE_PADDED: tl.constexpr, SIGMOID: tl.constexpr, CORRECTED: tl.constexpr, RENORMALISED: tl.constexpr,
):  # fmt: skip
    """Routes one row. Experts are a tile [groups, size of a group], padded with experts that have a score of -inf."""
    row = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS_PADDED)[:, None], tl.arange(0, SIZE_PADDED)[None, :]
    inside = (group < GROUPS) & (member < size)
    expert = group * size + member
    logits = tl.load(logits_ptr + row * GROUPS * size + expert, mask=inside, other=float("-inf"))
    if SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        raised = tl.where(inside, tl.exp(logits - tl.max(logits)), 0.0)
        scores = raised / tl.sum(raised)
    choice = scores
    if CORRECTED:
        choice += tl.load(correction_ptr + expert, mask=inside, other=0.0)
    choice = tl.where(inside, choice, float("-inf"))
    if KEPT < GROUPS:
        best = tl.max(choice, axis=1)
        first = tl.min(tl.where(choice == best[:, None], member, SIZE_PADDED), axis=1)
        second = tl.max(tl.where(member == first[:, None], float("-inf"), choice), axis=1)
        values = tl.where(tl.arange(0, GROUPS_PADDED) < GROUPS, best + tl.where(size > 1, second, 0.0), float("-inf"))
        kept = tl.zeros([GROUPS_PADDED], dtype=tl.int1)
        for _ in tl.static_range(KEPT):
            numbers = tl.arange(0, GROUPS_PADDED)
            taken = tl.min(tl.where(values == tl.max(values), numbers, GROUPS_PADDED))
            kept = kept | (numbers == taken)
            values = tl.where(numbers == taken, float("-inf"), values)
        choice = tl.where(kept[:, None], choice, float("-inf"))
    slots = tl.arange(0, triton.next_power_of_2(TOP_K))
    ids = tl.zeros([triton.next_power_of_2(TOP_K)], dtype=tl.int32)
    shares = tl.zeros([triton.next_power_of_2(TOP_K)], dtype=tl.float32)
    total = 0.0
    for slot in tl.static_range(TOP_K):
        chosen = tl.min(tl.where(choice == tl.max(choice), expert, GROUPS * size - 1))
        share = tl.sum(tl.where(expert == chosen, scores, 0.0))
        choice = tl.where(expert == chosen, float("-inf"), choice)
        ids = tl.where(slots == slot, chosen, ids)
        shares = tl.where(slots == slot, share, shares)
        total += share
    if RENORMALISED:
        shares = shares / total
    tl.store(ids_ptr + row * TOP_K + slots, ids, mask=slots < TOP_K)
    tl.store(weights_ptr + row * TOP_K + slots, shares * scale, mask=slots < TOP_K)


def route(
    logits: Tensor,
    top_k: int,
    correction: Tensor | None,
    sigmoid: bool,
    renormalised: bool,
    groups: int,
    kept_groups: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Returns reference.route: (experts [rows, top_k] int32, weights [rows, top_k] float32)."""
    rows, experts = logits.shape
    assert logits.is_contiguous() and logits.dtype == torch.float32 and experts % groups == 0
    ids = torch.empty(rows, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=logits.device)
    size = experts // groups
    _route_kernel[(rows,)](
        logits, logits if correction is None else correction, ids, weights, size, scale,
        GROUPS=groups, KEPT=kept_groups, TOP_K=top_k, GROUPS_PADDED=next_power_of_2(groups),
        SIZE_PADDED=next_power_of_2(size), SIGMOID=sigmoid, CORRECTED=correction is not None,
        RENORMALISED=renormalised,
    )  # fmt: skip
    return ids, weights
