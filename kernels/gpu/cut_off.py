"""Triton: where a filter cuts a row's logits. Keys, masses, and the bisection that finds a cut-off key.

A key is a float32's bits as an integer of the same order. All sums are integers, so their order changes no bit.
Knows no draws; kernels/gpu/sample.py decides which logits are examined and what goal the cut-off must reach.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def load_logits(logits_ptr, inside):
    """Loads logits; NaN and masked lanes become -inf, +inf becomes the largest float32."""
    logits = tl.load(logits_ptr, mask=inside, other=float("-inf"))
    return tl.minimum(tl.where(logits == logits, logits, float("-inf")), LARGEST)


@triton.jit
def key_of(logits):
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def logit_of(key):
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def mass_of(logits, temperature, top, SCALE: tl.constexpr):
    """Returns exp(logits / temperature - top) in fixed point, in units of 1 / SCALE, as int64."""
    return (tl.exp(logits.to(tl.float64) / temperature - top) * SCALE + 0.5).to(tl.int64)


@triton.jit
def amount_from(
    logits_ptr, count, least, temperature, top, SCALE: tl.constexpr, BY_MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """Returns the sum of mass (BY_MASS) or the number of those of `count` logits that have a key >= `least`."""
    found = tl.zeros([BLOCK], dtype=tl.int64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        logits = load_logits(logits_ptr + place, place < count)
        chosen = (place < count) & (key_of(logits) >= least)
        if BY_MASS:
            found += tl.where(chosen, mass_of(logits, temperature, top, SCALE), 0)
        else:
            found += chosen.to(tl.int64)
    return tl.sum(found, axis=0)


@triton.jit
def find_cut(
    logits_ptr, count, goal, low, high, temperature, top,
    SCALE: tl.constexpr, BY_MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the largest key in (low, high) with an amount of at least `goal`, by bisection; `low` if none has."""
    while high - low > 1:
        middle = (low + high) >> 1
        enough = amount_from(logits_ptr, count, middle, temperature, top, SCALE, BY_MASS, BLOCK) >= goal
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def num_equal(logits_ptr, ids_ptr, count, key, last, BLOCK: tl.constexpr):
    """Returns how many of `count` candidates have exactly this key and an id <= `last`."""
    found = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        logits = load_logits(logits_ptr + place, place < count)
        ids = tl.load(ids_ptr + place, mask=place < count, other=0)
        found += ((place < count) & (key_of(logits) == key) & (ids <= last)).to(tl.int32)
    return tl.sum(found, axis=0)
