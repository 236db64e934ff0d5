"""A weight with torch's matrix product. Not batch-invariant."""

from collections.abc import Sequence

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
