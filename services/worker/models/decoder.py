"""A decoder: embedding, the operations of its layers over a paged KV cache, and the head.

Owns the weights in the layout of its kernels. It does not know requests: its inputs are tokens, positions and attention
metadata.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.interface import AttentionInputs, KvPair, Ops
from kernels.program import Matrix, Mix, Multiply, Operation, Route
from kernels.torch_matrix import TorchMatrix
from kernels.weight_parts import joined
from services.worker.models.description import Description
from services.worker.models.kv_layout import kv_layout
from services.worker.models.operations import ProgramWriter
from services.worker.models.tensors import EMBEDDING, HEAD, weight
from services.worker.weights import Weights

KvCache = list[KvPair]  # per layer


class Decoder:
    def __init__(
        self,
        description: Description,
        dtype: torch.dtype,
        device: torch.device,
        weights: Weights,
        ops: Ops,
        length: int,
    ) -> None:
        """Takes the tensors (parameter_shapes) out of `weights`, one at a time, and copies them to `device`.

        Matrices get `dtype` and, but for an untied embedding, are quantised if `ops` does that. `length`: tokens that a
        request may have.
        """
        self.description = description
        self.dtype = dtype
        self.device = device
        self.ops = ops
        self.kv_layout = kv_layout(description, length)
        self._embedding_factor = description.embedding_factor
        if description.is_factor_rounded:
            self._embedding_factor = torch.tensor(self._embedding_factor, dtype=dtype).item()
        writer = ProgramWriter(description, dtype, device, weights, ops, length, self.kv_layout)
        self._embedding: Matrix
        if description.tied:
            self._embedding = self._head = writer.matrix(EMBEDDING)
        else:
            # An untied embedding is only looked up, never multiplied: it is not packed.
            self._embedding = TorchMatrix(joined([weights.take(weight(EMBEDDING))], dtype, device))
            self._head = writer.matrix(HEAD)
        program = writer.program()
        self._row_classes = list(_row_classes(program))
        self._stack = ops.stack(program)

    def row_classes(self, most: int) -> list[int]:
        """Returns numbers of tokens up to `most` with which each variant of the layers' products runs, ascending."""
        return sorted({count for classes in self._row_classes for count in classes(most)})

    def head_row_classes(self, most: int) -> Sequence[int]:
        """Returns numbers of rows up to `most` with which each variant of the head's product runs, ascending."""
        return self._head.row_classes(most)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        caches: KvCache,
        inputs: Sequence[AttentionInputs],
        logits_indices: Tensor,
    ) -> Tensor:
        """Returns hidden states [S, hidden], after the final norm, of the tokens `logits_indices` [S] int64, ascending.

        input_ids [T] int64, positions [T] int64. inputs: per KV group. Writes the KV of all T tokens into the caches.
        """
        hidden = self._embedding.rows(input_ids)
        if self._embedding_factor != 1.0:
            hidden *= self._embedding_factor
        return self._stack(hidden, positions, caches, inputs, logits_indices)

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [S, vocab] float32 of hidden states [S, hidden] that `forward` returned."""
        logits = self._head.product(hidden, torch.float32)
        if self.description.logit_factor != 1.0:
            logits *= self.description.logit_factor
        if self.description.logit_soft_cap:
            self.ops.soft_cap(logits, self.description.logit_soft_cap)
        return logits

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Returns a new paged KV cache of all layers; those with one place in kv_layout share theirs. Raises OSError or
        torch.OutOfMemoryError without the memory.

        Freed blocks need no clearing: attention reads none of its request's tokens that the request has not written.
        """
        layout, pairs = self.kv_layout, []
        for place in range(layout.num_places):
            attention = self.description.layers[layout.layer_at(place)].attention
            heads, dim = attention.kv_heads, attention.head_dim
            pairs.append(self.ops.allocate_kv_cache(num_blocks, block_size, heads, dim, self.dtype, self.device))
        return [pairs[place] for place in layout.places]


def _row_classes(program: Sequence[Operation]) -> Iterator[Callable[[int], Sequence[int]]]:
    """Yields the row_classes of each product: functions of the most rows."""
    top_k = 1
    for operation in program:
        match operation:
            case Multiply(matrix=matrix):
                yield matrix.row_classes
            case Route(matrix=matrix, top_k=top_k):
                yield matrix.row_classes
            case Mix(inner=inner, down=down):
                yield from (partial(each.row_classes, top_k=top_k) for each in (inner, down))
