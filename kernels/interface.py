"""The operations that a model calls (Ops), and their operands. Results and shapes: kernels/reference.py.

Batch invariance is defined in kernels/__init__.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.program import Experts, Matrix, Mix, Operation, Route

# Sampling parameters of a row. The memory layout of sample::Draw in kernels/cpu/native/sample.h.
DRAW = np.dtype(
    [
        ("temperature", "<f8"),  # 0: greedy
        ("top_p", "<f8"),
        ("min_p", "<f8"),
        ("top_k", "<i8"),  # 0 or less: all
        ("seed", "<u8"),
        ("choice", "<i8"),
        ("index", "<i8"),  # of the token in the output
    ]
)
Draws = npt.NDArray[np.void]
KvPair = tuple[Tensor, Tensor]  # paged keys and values of one layer; the layout is private to its Ops


@dataclass(frozen=True)
class AttentionInputs:
    """Attention metadata of a step with R requests and T tokens, for the layers of one KV group. Requests with one
    query come first."""

    slot_mapping: Tensor  # [T] int64: block * block_size + offset; -1 (GPU only): KV is not written
    block_tables: Tensor  # [R, blocks] int32
    query_start_loc: Tensor  # [R + 1] int32
    seq_lens: Tensor  # [R] int32; 0: padding, the results of its queries are undefined
    num_decodes: int  # requests with one query
    max_query_len: int
    max_seq_len: int  # an upper bound


class Stack(Protocol):
    """Runs a decoder's operations: all between the embedding and the logits."""

    def __call__(
        self,
        hidden: Tensor,
        positions: Tensor,
        caches: Sequence[KvPair],
        inputs: Sequence[AttentionInputs],
        logits_indices: Tensor,
    ) -> Tensor:
        """Returns the last norm's result [S, hidden].

        hidden [T, hidden]: the embeddings; may be overwritten. positions [T] int64. caches: by Attend.layer. inputs: by
        Attend.group; they differ in slot_mapping and block_tables alone.
        logits_indices [S] int64: the tokens to return, ascending. Writes keys and values of all T tokens into the
        caches.
        """


class Ops(Protocol):
    """The operations of a model on one kind of device.

    `name` names the kernels; it is part of the numerics id. `batch_invariant`: see kernels/__init__.py.
    """

    name: str
    batch_invariant: bool

    def matrix(
        self,
        *parts: Tensor,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        exact: bool = False,
    ) -> Matrix:
        """Returns a copy of `parts` [rows, k], concatenated along rows, as a Matrix, quantised if these Ops quantise
        and it need not be `exact`.

        The parts may be memory-mapped. `dtype`, of the activations, and device default to those of the first part.
        """

    def experts(
        self, weights: Sequence[Sequence[Tensor]], dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Experts:
        """Returns a copy of the weights of all experts of a layer: of each, what `matrix` takes. All have one shape."""

    def allocate_kv_cache(
        self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> KvPair:
        """Returns a new paged KV cache of one layer, zeroed. Raises OSError or torch.OutOfMemoryError if memory
        does not suffice."""

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centred: bool) -> Tensor: ...
    def add_norm(
        self, x: Tensor, residual: Tensor, factor: float, weight: Tensor, bias: Tensor | None, eps: float, centred: bool
    ) -> tuple[Tensor, Tensor]: ...
    def rope_and_write(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        tables: tuple[Tensor, Tensor] | None,
        positions: Tensor,
        cache: KvPair,
        slot_mapping: Tensor,
    ) -> Tensor: ...
    def paged_attention(
        self,
        query: Tensor,
        cache: KvPair,
        inputs: AttentionInputs,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor: ...
    def activate(self, x: Tensor, kind: str, gated: bool, alpha: float = 1.0, limit: float = 0.0) -> Tensor: ...
    def route(self, logits: Tensor, how: Route) -> tuple[Tensor, Tensor]: ...
    def mix(self, x: Tensor, chosen: tuple[Tensor, Tensor], how: Mix, added: Tensor | None) -> Tensor: ...
    def stack(self, operations: Sequence[Operation]) -> Stack: ...

    def draw(self, logits: Tensor, raw: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Returns (token ids [rows] int64, healthy [rows] bool): one token sampled per row, as sampling.draw."""

    def soft_cap(self, logits: Tensor, cap: float) -> None: ...
    def apply_bitmask(self, logits: Tensor, masks: Tensor, rows: Tensor) -> None: ...
    def kernel_nanoseconds(self) -> int:
        """Returns the wall time in compiled CPU kernels so far, in nanoseconds; 0 without such kernels."""

    def scratch_bytes(
        self, tokens: int, width: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: torch.dtype
    ) -> int:
        """Returns an upper bound of the temporaries of any operation but `draw`, in bytes, without its result.

        For `tokens` rows of at most `width` elements; in attention, for requests of up to `length` tokens.
        """

    def mixture_bytes(self, pairs: int, hidden: int, inner: int, size: int, dtype: torch.dtype) -> int:
        """Returns an upper bound of the temporaries of `mix`, in bytes, without its result.

        For `pairs` of a token and an expert, and experts [hidden] -> [inner] -> [size] -> [hidden].
        """

    def draw_scratch_bytes(self, rows: int, vocab: int) -> int:
        """Returns an upper bound of the temporaries of `draw` on logits [rows, vocab], in bytes."""
