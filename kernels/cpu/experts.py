"""The weights of a layer's experts in the layout of the compiled kernels (native/mixture.h)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels import pages
from kernels.cpu.library import Library
from kernels.cpu.matrix import ALIGNMENT, CpuMatrix


class CpuExperts:
    """Matrices of one shape in one piece of memory. `operands` [experts, 4] int64: those of each (operand.h)."""

    def __init__(
        self, kind: type[CpuMatrix], library: Library, weights: Sequence[Sequence[Tensor]], dtype: torch.dtype
    ) -> None:
        """`weights`: the parts of each expert's matrix, as CpuMatrix takes them."""
        assert len({tuple(tuple(part.shape) for part in parts) for parts in weights}) == 1
        size = kind.num_bytes(library, weights[0], dtype)
        storage = pages.zeros((len(weights), -(-size // ALIGNMENT) * ALIGNMENT), torch.uint8)
        pairs = zip(weights, storage, strict=True)
        self._matrices = [kind(library, parts, dtype, own[:size]) for parts, own in pairs]
        assert not self._matrices[0].padding
        self.operands = np.array([matrix.operand() for matrix in self._matrices], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._matrices)

    def row_classes(self, most: int, top_k: int) -> Sequence[int]:
        return (1,)
