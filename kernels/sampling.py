"""Samples one token per row of logits in plain torch: min-p, top-k, top-p, then Gumbel-max. Twin of the draw kernels.

Batch-invariant: a row's token depends on that row alone. Ties go to the lowest token id. No device sync.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.interface import Draws
from kernels.philox import gumbel_noise
from kernels.transfer import to_device

# Per logit. Scores and noise in float64 take 52 at their peak; the rest is what malloc caches of temporaries below
# 32 MiB.
SCRATCH_BYTES = 92


def draw_scratch_bytes(rows: int, vocab: int) -> int:
    """Returns an upper bound of the temporaries of `draw` on logits [rows, vocab], in bytes."""
    return rows * vocab * SCRATCH_BYTES


def draw(logits: Tensor, raw: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Returns (token ids [rows] int64, healthy [rows] bool) for logits and raw [rows, vocab] float32.

    `raw` are the logits before penalties and masks, `draws` [rows] DRAW records. A row is healthy if all its `raw` are
    finite; else its token is undefined.
    """
    token_ids = torch.argmax(logits, dim=-1)  # the first of equal maxima, so the lowest id
    drawn = draws["temperature"].nonzero()[0]
    if len(drawn):
        places = to_device(drawn, torch.int64, logits.device)
        token_ids[places] = _draw(logits[places], draws[drawn])
    return token_ids, torch.isfinite(raw).all(dim=-1)


def _draw(logits: Tensor, draws: Draws) -> Tensor:
    """Returns [rows] int64: the argmax of logits [rows, vocab], scaled and filtered, plus Gumbel noise, in float64."""
    scaled = logits.double() / to_device(draws["temperature"], torch.float64, logits.device).unsqueeze(1)
    for index, one in enumerate(draws):
        apply_min_p_top_k_top_p(scaled[index], one)
    noise = gumbel_noise(
        draws["seed"].tolist(), draws["choice"].tolist(), draws["index"].tolist(), logits.shape[1], logits.device
    )
    return torch.argmax(scaled + noise, dim=-1)


def apply_min_p_top_k_top_p(scores: Tensor, draw: Any) -> None:
    """Sets dropped tokens to -inf in `scores` [vocab], in place.

    `scores`: logits / temperature. `draw`: a DRAW record. Order: min-p (arXiv 2407.01082), top-k, top-p (arXiv
    1904.09751).
    """
    min_p, top_p = float(draw["min_p"]), float(draw["top_p"])
    if min_p > 0.0:
        probabilities = torch.softmax(scores, dim=-1)
        scores.masked_fill_(probabilities < min_p * probabilities.max(), float("-inf"))
    top_k = int(draw["top_k"]) if 0 < draw["top_k"] < scores.shape[0] else 0
    if not top_k and top_p >= 1.0:
        return
    order = torch.argsort(scores, descending=True, stable=True)  # stable: ties stay in order of their ids
    kept = order[:top_k] if top_k else order
    keep = torch.zeros_like(scores, dtype=torch.bool)
    if top_p < 1.0:
        probabilities = torch.softmax(scores[kept], dim=-1)
        before = torch.cumsum(probabilities, dim=-1) - probabilities
        keep.scatter_(0, kept, before < top_p)
    else:
        keep.index_fill_(0, kept, True)
    scores.masked_fill_(~keep, float("-inf"))
