"""Products by torch, and the operations made of the plain twins: the path of `--no-batch-invariant`."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import pages, reference, sampling, upload
from kernels.interface import AttentionInputs, KvPair, Layer, Stack
from kernels.stack import OneByOne

SCORES = 2**24  # of attention, at once
SCORE_BYTES = 12  # in float32, twice, and their masks
CONVERTED_ROWS = 4096  # of a weight of another type, at once
POINTWISE_BYTES = 20  # of an element of the reference's wider operands: five copies in float32


class TorchMatrix:
    """oneDNN or cuBLAS: the bits of a row may depend on how many rows there are."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return F.linear(x, self._weight).to(dtype or x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._weight)


def joined(parts: Sequence[Tensor], dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """A copy of the parts [rows, k], one beneath the other: Ops.matrix says more."""
    dtype, device = dtype or parts[0].dtype, device or parts[0].device
    shape = (sum(map(len, parts)), parts[0].shape[1])
    if device.type != "cpu":
        whole = torch.empty(shape, dtype=dtype, device=device)
        upload.fill(whole, parts)
        return whole
    whole, first = pages.zeros(shape, dtype), 0
    for part in parts:
        whole[first : first + len(part)].copy_(part)
        first += len(part)
    return whole


def rows_of(parts: Sequence[Tensor], dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """(place, rows) of the weight that `parts` [rows, k] make beneath each other, some at a time, as `dtype`."""
    first = 0
    for part in parts:
        assert part.shape[1] == parts[0].shape[1]
        for at in range(0, len(part), CONVERTED_ROWS):
            rows = part[at : at + CONVERTED_ROWS].to(dtype).contiguous()
            yield first, rows
            first += len(rows)


def plain_cache(
    num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KvPair:
    """Both [blocks, block_size, kv_heads, head_dim]."""
    size = (num_blocks, block_size, kv_heads, head_dim)
    if device.type == "cpu":
        return pages.zeros(size, dtype), pages.zeros(size, dtype)
    return torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device)


class TorchOps:
    name = "torch"
    batch_invariant = False
    empty_cache = staticmethod(plain_cache)
    rms_norm = staticmethod(reference.rms_norm)
    add_rms_norm = staticmethod(reference.add_rms_norm)
    rope_and_write = staticmethod(reference.rope_and_write)
    silu_mul = staticmethod(reference.silu_mul)
    draw = staticmethod(sampling.draw)
    draw_scratch_bytes = staticmethod(sampling.draw_scratch_bytes)

    def matrix(
        self, *parts: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> TorchMatrix:
        return TorchMatrix(joined(parts, dtype, device))

    def paged_attention(self, query: Tensor, cache: KvPair, inputs: AttentionInputs, scale: float) -> Tensor:
        """A request's queries in pieces, so that no more than SCORES scores are held at once, or those of one query."""
        out = torch.empty_like(query)
        starts, lens = inputs.query_start_loc.tolist(), inputs.seq_lens.tolist()
        for row, length in enumerate(lens):
            end = starts[row + 1]
            most = max(1, SCORES // (query.shape[1] * length))
            for first in range(starts[row], end, most):
                last = min(end, first + most)
                span, seen = torch.tensor([0, last - first]), torch.tensor([length - (end - last)])
                table = inputs.block_tables[row : row + 1]
                out[first:last] = reference.paged_attention(query[first:last], *cache, table, span, seen, scale)
        return out

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """Copies in float32: of a pointwise operand and what becomes of it, or of a request's keys and values."""
        scores = min(max(SCORES, heads * length), heads * length * tokens)
        attention = scores * SCORE_BYTES + length * kv_heads * head_dim * (2 * dtype.itemsize + 16)
        return max(tokens * width * POINTWISE_BYTES, attention)

    def stack(self, layers: Sequence[Layer], eps: float, scale: float, cos_sin: Tensor) -> Stack:
        return OneByOne(self, layers, eps, scale, cos_sin)

    def kernel_nanoseconds(self) -> int:
        return 0
