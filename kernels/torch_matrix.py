"""A weight with torch's matrix product. Not batch-invariant."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchMatrix:
    """A Matrix for oneDNN or cuBLAS, `weight` [n, k] not quantised: a row's bits may depend on the number of rows."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def product(self, x: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, self._weight, None if bias is None else bias.to(x.dtype)).to(dtype or x.dtype)

    def row_classes(self, most: int) -> Sequence[int]:
        return (1,)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._weight)


class TorchExperts:
    """Experts of TorchMatrix."""

    def __init__(self, matrices: Sequence[TorchMatrix]) -> None:
        self._matrices = matrices

    def __len__(self) -> int:
        return len(self._matrices)

    def row_classes(self, most: int, top_k: int) -> Sequence[int]:
        return (1,)

    def products(self, biases: Tensor | None) -> list[Callable[[Tensor], Tensor]]:
        """Returns each expert's product of rows [rows, k], with its bias of `biases` [experts, n] float32."""
        rows = [None] * len(self) if biases is None else list(biases)
        return [partial(one.product, bias=bias) for one, bias in zip(self._matrices, rows, strict=True)]
