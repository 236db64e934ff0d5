"""The operations that a model calls, and what they are given. Meaning and shapes: kernels/reference.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# How each row's token is drawn: [rows] of this, as the compiled kernel reads it (kernels/cpu/native/sample.h).
DRAW = np.dtype(
    [
        ("temperature", "<f8"),  # 0: the likeliest token
        ("top_p", "<f8"),
        ("min_p", "<f8"),
        ("top_k", "<i8"),  # 0 or less: all
        ("seed", "<u8"),
        ("choice", "<i8"),
        ("index", "<i8"),  # of the token in the answer
    ]
)
Draws = npt.NDArray[np.void]
KvPair = tuple[Tensor, Tensor]  # keys and values of one layer; how they lie is the business of its ops


@dataclass(frozen=True)
class AttentionInputs:
    """Where this step's tokens stand. R requests, T tokens."""

    slot_mapping: Tensor  # [T] int64: block * block_size + offset; -1, on a GPU: nothing is written
    block_tables: Tensor  # [R, blocks] int32
    query_start_loc: Tensor  # [R + 1] int32
    seq_lens: Tensor  # [R] int32; 0: no request, and its queries' results have no meaning
    max_query_len: int
    max_seq_len: int  # a bound: no request is longer


class Matrix(Protocol):
    """A weight [n, k] in the layout that its products want."""

    def product(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """x [rows, k] -> [rows, n], in x's dtype or in the one given (float32)."""

    def rows(self, ids: Tensor) -> Tensor:
        """The weight's rows `ids` [count] int64 -> [count, k]: an embedding."""


@dataclass(frozen=True)
class Layer:
    """Weights of a decoder's layer. Projections that read the same input are one matrix: qkv and gate_up."""

    input_norm: Tensor  # [hidden]
    qkv: Matrix  # [(heads + 2 * kv_heads) * head_dim, hidden]
    head_norms: tuple[Tensor, Tensor] | None  # of queries and of keys, [head_dim] each
    out: Matrix  # [hidden, heads * head_dim]
    post_norm: Tensor  # [hidden]
    gate_up: Matrix  # [2 * intermediate, hidden]
    down: Matrix  # [hidden, intermediate]


class Stack(Protocol):
    """The layers of a decoder."""

    layers: Sequence[Layer]

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: AttentionInputs,
        logits_indices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """hidden [T, hidden], which is used up, and the S ascending tokens `logits_indices` [S] int64 -> two of [S, hidden]:
        what the last layer adds, and what it is to be added to. Writes keys and values of all T into the caches."""


class Ops(Protocol):
    """`name` goes into the numerics id; `batch_invariant`: a row's bits depend on that row alone."""

    name: str
    batch_invariant: bool

    def matrix(self, *parts: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Matrix:
        """The weight whose rows are those of `parts` [rows, k], one part beneath the other, in a copy of its own.

        The parts may be mapped files; type and device are those of the first unless given.
        """

    def allocate_kv_cache(
        self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> KvPair: ...
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...
    def rope_and_write(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        cos_sin: Tensor,
        positions: Tensor,
        cache: KvPair,
        slot_mapping: Tensor,
    ) -> Tensor: ...
    def paged_attention(self, query: Tensor, cache: KvPair, inputs: AttentionInputs, scale: float) -> Tensor: ...
    def silu_mul(self, gate_up: Tensor) -> Tensor: ...
    def stack(self, layers: Sequence[Layer], eps: float, scale: float, cos_sin: Tensor) -> Stack:
        """`scale`: of attention's scores; cos_sin as in rope_and_write."""

    def draw(self, logits: Tensor, raw: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """As in kernels/sampling.py."""

    def kernel_nanoseconds(self) -> int:
        """Time in which kernels ran since the process began; 0 where nobody counts it."""

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """The most that any of these takes beside its operands and its result.

        For `tokens` rows of at most `width` elements; in attention, of requests of up to `length` tokens.
        """

    def draw_scratch_bytes(self, rows: int, vocab: int) -> int:
        """The most that `draw` takes beside its operands and its result."""
