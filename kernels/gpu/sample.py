"""Triton: samples one token per row of logits, without a sort and without a device sync. Twin: kernels/sampling.py.

Two launches: each chunk of each row finds its best score, then each row its best chunk. If a row has min-p, top-k or
top-p, two more launches: its candidates are gathered, and the filters' cut-off is found by bisection.

Every filter keeps a prefix of the logits in descending order; equal logits are ordered by id. So a filter's result is
one cut-off key (kernels/gpu/cut_off.py) and how many logits with exactly this key are kept.

Batch invariance: sums over candidates are integers (top-p masses in units of 2**-(61 - bits of the vocabulary)), all
else is a maximum or minimum. Both give the same bits in any order, so atomics are harmless. A row can differ from the
twin only if a probability is at the very edge of min_p or top_p. docs/decisions/0022-gpu-draw.md.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.cut_off import amount_from, find_cut, key_of, load_logits, logit_of, mass_of, num_equal
from kernels.gpu.rounding import cdiv, next_power_of_2
from kernels.interface import DRAW, Draws
from kernels.transfer import to_device

CHUNK = 2048  # logits per program
SEGMENT = 64  # logits per stored maximum; the maxima give a lower bound of the top-k cut-off
BLOCK = 1024  # candidates per load
CHUNK_BYTES = 8 + 4 + 8 + 1 + 4 * CHUNK // SEGMENT
CANDIDATE_BYTES = 4 + 4
ROW_BYTES = 4 * DRAW.itemsize  # a row's DRAW record, and what one launch stores for the next

FIELDS = tl.constexpr(len(DRAW.names or ()))
TEMPERATURE, TOP_P, MIN_P, TOP_K, SEED, CHOICE, INDEX = (tl.constexpr(place) for place in range(len(DRAW.names or ())))
LOWEST = tl.constexpr(-2139095041)  # the key of -inf
UNIT = tl.constexpr(2.0**-32)
SLACK = tl.constexpr(1e-6)  # loosens a bound: extra candidates are harmless, a missing one is not


def draw_scratch_bytes(rows: int, vocab: int) -> int:
    """Returns an upper bound of the temporaries of `draw` on logits [rows, vocab], in bytes."""
    return rows * (-(-vocab // CHUNK) * CHUNK_BYTES + vocab * CANDIDATE_BYTES + ROW_BYTES)


@triton.jit
def _number(draws_ptr, row, FIELD: tl.constexpr):
    return tl.load(draws_ptr + row * FIELDS + FIELD).to(tl.float64, bitcast=True)


@triton.jit
def _filters(draws_ptr, row, vocab):
    """Returns (temperature, top_p, min_p, top_k, whether these drop tokens); top_k 0: all. Greedy rows drop none."""
    temperature = _number(draws_ptr, row, TEMPERATURE)
    top_p = _number(draws_ptr, row, TOP_P)
    min_p = _number(draws_ptr, row, MIN_P)
    top_k = tl.load(draws_ptr + row * FIELDS + TOP_K)
    top_k = tl.where((top_k > 0) & (top_k < vocab), top_k, 0)
    filtered = (temperature > 0.0) & ((top_p < 1.0) | (min_p > 0.0) | (top_k > 0))
    return temperature, top_p, min_p, top_k, filtered


@triton.jit
def _top_of(score):
    """Returns what is subtracted before exp: the maximum `score`, or 0 if that is -inf."""
    return tl.where(score == float("-inf"), 0.0, score)


@triton.jit
def _words(draws_ptr, row, groups):
    """Returns the four Philox words of each group of four token ids, as in kernels/philox.py."""
    seed = tl.load(draws_ptr + row * FIELDS + SEED)
    zero = groups * 0
    index = zero + tl.load(draws_ptr + row * FIELDS + INDEX).to(tl.int32)
    choice = zero + tl.load(draws_ptr + row * FIELDS + CHOICE).to(tl.int32)
    return tl.philox(seed, groups, index, choice, zero)


@triton.jit
def _gumbel(words):
    return -tl.log(-tl.log((words.to(tl.float64) + 0.5) * UNIT))


@triton.jit
def _scan_kernel(
    logits_ptr, raw_ptr, draws_ptr, best_ptr, first_ptr, mass_ptr, finite_ptr, segments_ptr, vocab, chunks,
    SCALE: tl.constexpr, CHUNK: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """For one chunk of one row: stores the best score, its lowest id, and whether all raw logits are finite.

    A score is logit / temperature + noise; for a greedy row, or one with filters, the logit. If the row has filters,
    also stores the sum of exp((logit - best) / temperature), in fixed point, and the largest logit of each segment.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < vocab
    logits = load_logits(logits_ptr + row * vocab + ids, inside)
    raw = tl.load(raw_ptr + row * vocab + ids, mask=inside, other=0.0)
    finite = (raw.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    here = row * chunks + chunk
    tl.store(finite_ptr + here, tl.min(finite.to(tl.int32), axis=0).to(tl.uint8))

    temperature, _, _, _, filtered = _filters(draws_ptr, row, vocab)
    scores = logits.to(tl.float64)
    if temperature > 0.0:
        if filtered:
            top = _top_of(tl.max(scores, axis=0) / temperature)
            tl.store(mass_ptr + here, tl.sum(mass_of(logits, temperature, top, SCALE), axis=0))
            segments = tl.max(tl.reshape(logits, [CHUNK // SEGMENT, SEGMENT]), axis=1)
            tl.store(segments_ptr + here * (CHUNK // SEGMENT) + tl.arange(0, CHUNK // SEGMENT), segments)
        else:
            w0, w1, w2, w3 = _words(draws_ptr, row, chunk * (CHUNK // 4) + tl.arange(0, CHUNK // 4))
            words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
            scores = scores / temperature + _gumbel(words)
    best = tl.max(scores, axis=0)
    tl.store(best_ptr + here, best)
    tl.store(first_ptr + here, tl.min(tl.where(scores == best, ids, vocab - 1), axis=0))


@triton.jit
def _reduce_kernel(
    draws_ptr, best_ptr, first_ptr, mass_ptr, finite_ptr, segments_ptr, tokens_ptr, healthy_ptr, bounds_ptr, keys_ptr,
    counts_ptr, vocab, chunks, SCALE: tl.constexpr, CHUNKS: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For one row: stores its token and whether it is healthy.

    If the row has filters, _pick_kernel replaces the token. For it, stores the bounds of the row's candidates: key >=
    keys[row, 0], and logit / temperature - bounds[row, 0] >= bounds[row, 1].
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    here, inside = row * chunks + chunk, chunk < chunks
    best = tl.load(best_ptr + here, mask=inside, other=float("-inf"))
    first = tl.load(first_ptr + here, mask=inside, other=vocab - 1)
    finite = tl.load(finite_ptr + here, mask=inside, other=1)
    winner = tl.max(best, axis=0)
    tl.store(tokens_ptr + row, tl.min(tl.where(best == winner, first, vocab - 1), axis=0).to(tl.int64))
    tl.store(healthy_ptr + row, tl.min(finite.to(tl.int32), axis=0).to(tl.uint8))

    temperature, top_p, min_p, top_k, filtered = _filters(draws_ptr, row, vocab)
    if filtered:
        top = _top_of(winner / temperature)
        masses = tl.load(mass_ptr + here, mask=inside, other=0).to(tl.float64)
        total = tl.maximum(tl.sum(masses * tl.exp(best / temperature - top), axis=0), 1.0)
        least = tl.full([], float("-inf"), tl.float64)
        if min_p > 0.0:
            least = tl.log(min_p)
        if (min_p <= 0.0) & (top_k == 0):
            # A token with less than (1 - top_p) / vocab of the mass comes after all tokens that top-p keeps.
            least = tl.log((1.0 - top_p) * (total / SCALE) / vocab) - SLACK
        above = key_of(winner.to(tl.float32)) + 1
        floor = tl.full([], LOWEST, tl.int64)
        if top_k > 0:
            # top_k segments have a maximum >= this key, so at least top_k logits are >= it.
            segments = segments_ptr + row * chunks * SEGMENTS
            floor = find_cut(segments, chunks * SEGMENTS, top_k, floor, above, temperature, top, SCALE, False, BLOCK)
        tl.store(bounds_ptr + row * 3, top)
        tl.store(bounds_ptr + row * 3 + 1, least)
        tl.store(bounds_ptr + row * 3 + 2, total)
        tl.store(keys_ptr + row * 2, floor)
        tl.store(keys_ptr + row * 2 + 1, above)
        tl.store(counts_ptr + row, 0)


@triton.jit
def _gather_kernel(
    logits_ptr, draws_ptr, bounds_ptr, keys_ptr, counts_ptr, candidates_ptr, ids_ptr, vocab, CHUNK: tl.constexpr
):
    """Appends the candidates of one chunk to the row's list. The order of chunks varies; no result depends on it."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature, _, _, _, filtered = _filters(draws_ptr, row, vocab)
    if filtered:
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = ids < vocab
        logits = load_logits(logits_ptr + row * vocab + ids, inside)
        top, least = tl.load(bounds_ptr + row * 3), tl.load(bounds_ptr + row * 3 + 1)
        near = logits.to(tl.float64) / temperature - top >= least
        chosen = (inside & near & (key_of(logits) >= tl.load(keys_ptr + row * 2))).to(tl.int32)
        number = tl.sum(chosen, axis=0)
        if number > 0:
            begin = tl.atomic_add(counts_ptr + row, number)
            place = row * vocab + begin + tl.cumsum(chosen, axis=0) - chosen
            tl.store(candidates_ptr + place, logits, mask=chosen > 0)
            tl.store(ids_ptr + place, ids, mask=chosen > 0)


@triton.jit(do_not_specialize=["vocab"])  # Triton 3.6 cannot compile it specialised to a vocabulary of 1
def _pick_kernel(
    draws_ptr, bounds_ptr, keys_ptr, counts_ptr, candidates_ptr, ids_ptr, tokens_ptr, vocab,
    SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For one row with filters: applies top-k, then top-p, to its candidates; stores the kept token of best score."""
    row = tl.program_id(0).to(tl.int64)
    temperature, top_p, min_p, top_k, filtered = _filters(draws_ptr, row, vocab)
    if filtered:
        logits_ptr, own_ids_ptr = candidates_ptr + row * vocab, ids_ptr + row * vocab
        count = tl.load(counts_ptr + row)
        top, total = tl.load(bounds_ptr + row * 3), tl.load(bounds_ptr + row * 3 + 2)
        cut, above = tl.load(keys_ptr + row * 2), tl.load(keys_ptr + row * 2 + 1)
        equal = tl.full([], vocab, tl.int64)  # number of kept candidates with exactly the key `cut`
        if top_k > 0:
            goal = tl.minimum(top_k, count.to(tl.int64))
            cut = find_cut(logits_ptr, count, goal, cut, above, temperature, top, SCALE, False, BLOCK)
            equal = goal - amount_from(logits_ptr, count, cut + 1, temperature, top, SCALE, False, BLOCK)
        if top_p < 1.0:
            if (top_k > 0) | (min_p > 0.0):
                more = amount_from(logits_ptr, count, cut + 1, temperature, top, SCALE, True, BLOCK)
                total = (more + equal * mass_of(logit_of(cut), temperature, top, SCALE)).to(tl.float64)
            goal = tl.maximum(tl.ceil(top_p * total), 1.0).to(tl.int64)
            cut = find_cut(logits_ptr, count, goal, cut, above, temperature, top, SCALE, True, BLOCK)
            missing = goal - amount_from(logits_ptr, count, cut + 1, temperature, top, SCALE, True, BLOCK)
            each = tl.maximum(mass_of(logit_of(cut), temperature, top, SCALE), 1)
            equal = (missing + each - 1) // each

        # The largest id that is kept among the candidates with the key `cut`.
        last, before = tl.full([], vocab - 1, tl.int32), tl.full([], -1, tl.int32)
        if equal < num_equal(logits_ptr, own_ids_ptr, count, cut, last, BLOCK):
            while last - before > 1:
                middle = (before + last) >> 1
                enough = num_equal(logits_ptr, own_ids_ptr, count, cut, middle, BLOCK) >= equal
                last = tl.where(enough, middle, last)
                before = tl.where(enough, before, middle)

        best, token = tl.full([], float("-inf"), tl.float64), tl.full([], vocab, tl.int32)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < count
            logits = load_logits(logits_ptr + place, inside)
            ids = tl.load(own_ids_ptr + place, mask=inside, other=0)
            key = key_of(logits)
            kept = inside & ((key > cut) | ((key == cut) & (ids <= last)))
            w0, w1, w2, w3 = _words(draws_ptr, row, ids // 4)
            lane = ids % 4
            words = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
            scores = tl.where(kept, logits.to(tl.float64) / temperature + _gumbel(words), float("-inf"))
            found = tl.max(scores, axis=0)
            first = tl.min(tl.where(kept & (scores == found), ids, vocab), axis=0)
            better = (found > best) | ((found == best) & (first < token))
            token = tl.where(better, first, token)
            best = tl.where(better, found, best)
        tl.store(tokens_ptr + row, tl.where(token < vocab, token, 0).to(tl.int64))


def draw(logits: Tensor, raw: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Returns sampling.draw: (token ids [rows] int64, healthy [rows] bool). logits and raw are contiguous.

    Copies `draws` to the device once and does not sync.
    """
    (rows, vocab), device = logits.shape, logits.device
    assert logits.is_contiguous() and raw.is_contiguous() and logits.shape == raw.shape
    assert logits.dtype == raw.dtype == torch.float32 and draws.shape == (rows,) and draws.dtype == DRAW
    chunks = cdiv(vocab, CHUNK)
    records = to_device(np.ascontiguousarray(draws).view(np.int64), torch.int64, device)
    scale = 2.0 ** (61 - (vocab - 1).bit_length())

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    tokens, healthy = empty(torch.int64), empty(torch.uint8)
    best, first = empty(torch.float64, chunks), empty(torch.int32, chunks)
    mass, finite = empty(torch.int64, chunks), empty(torch.uint8, chunks)
    segments = empty(torch.float32, chunks * CHUNK // SEGMENT)
    bounds, keys, counts = empty(torch.float64, 3), empty(torch.int64, 2), empty(torch.int32)
    _scan_kernel[rows, chunks](
        logits, raw, records, best, first, mass, finite, segments, vocab, chunks,
        SCALE=scale, CHUNK=CHUNK, SEGMENT=SEGMENT,
    )  # fmt: skip
    _reduce_kernel[(rows,)](
        records, best, first, mass, finite, segments, tokens, healthy, bounds, keys, counts, vocab, chunks,
        SCALE=scale, CHUNKS=next_power_of_2(chunks), SEGMENTS=CHUNK // SEGMENT, BLOCK=BLOCK,
    )  # fmt: skip
    if _any_filter(draws, vocab):
        candidates, ids = empty(torch.float32, vocab), empty(torch.int32, vocab)
        _gather_kernel[rows, chunks](
            logits, records, bounds, keys, counts, candidates, ids, vocab, CHUNK=CHUNK
        )  # fmt: skip
        _pick_kernel[(rows,)](
            records, bounds, keys, counts, candidates, ids, tokens, vocab, SCALE=scale, BLOCK=BLOCK
        )  # fmt: skip
    return tokens, healthy.view(torch.bool)


def _any_filter(draws: Draws, vocab: int) -> bool:
    top_k = draws["top_k"]
    limits = (draws["top_p"] < 1.0) | (draws["min_p"] > 0.0) | ((top_k > 0) & (top_k < vocab))
    return bool((limits & (draws["temperature"] > 0.0)).any())
